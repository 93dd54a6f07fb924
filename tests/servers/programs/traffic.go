// Traffic between goroutines whose bytes are all compared.
//
//	traffic serve ADDRESS                  echoes, and serves HTTP at another port
//	traffic echo ADDRESS CONNS ROUNDS      connections that write and read chunks of all sizes
//	traffic http ADDRESS CONNS ROUNDS      requests of HTTP
//	traffic churn ADDRESS CONNS ROUNDS     connections that are dialled, used once and closed, in all ways of closing
//	traffic storm ADDRESS SECONDS          all of it at once, with programs that are started and garbage that is made
//	traffic held ADDRESS CONNS             holds connections until the server ends
//	traffic hand ADDRESS                   hands a connection and a listener to a program that it starts
//	traffic alone                          does so with connections between its own goroutines
//	traffic take                           is the program that is started
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const limit = 60 * time.Second

func fail(format string, a ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", a...)
	os.Exit(1)
}

func must(err error, what string) {
	if err != nil {
		fail("%s: %v", what, err)
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	must(err, s)
	return n
}

func pattern(n int, seed int64) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b)
	return b
}

func echoes(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 1+rand.Intn(70000))
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func serve(address string) {
	l, err := net.Listen("tcp", address)
	must(err, "listen")
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		w.Write(b)
	})
	h, err := net.Listen("tcp", "127.0.0.1:0")
	must(err, "listen")
	// The first byte of a connection may ask for the port of HTTP.
	go http.Serve(h, mux)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; os.Exit(0) }()
	for {
		c, err := l.Accept()
		must(err, "accept")
		go func() {
			first := make([]byte, 1)
			if _, err := io.ReadFull(c, first); err != nil {
				c.Close()
				return
			}
			if first[0] == 'P' {
				fmt.Fprintf(c, "%d\n", h.Addr().(*net.TCPAddr).Port)
				c.Close()
				return
			}
			echoes(c)
		}()
	}
}

func dial(address string) net.Conn {
	for {
		c, err := net.DialTimeout("tcp", address, limit)
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EMFILE) {
			time.Sleep(time.Millisecond)
			continue
		}
		must(err, "dial")
		c.SetDeadline(time.Now().Add(limit))
		return c
	}
}

func web(address string) string {
	c := dial(address)
	defer c.Close()
	c.Write([]byte("P"))
	b, err := io.ReadAll(c)
	must(err, "port")
	return "http://127.0.0.1:" + string(bytes.TrimSpace(b)) + "/echo"
}

// conversation writes in one goroutine what it reads in another.
func conversation(address string, rounds int, r *rand.Rand) {
	c := dial(address)
	defer c.Close()
	_, err := c.Write([]byte("E"))
	must(err, "write")
	for i := 0; i < rounds; i++ {
		n := 1 + r.Intn(100)
		if r.Intn(10) == 0 {
			n = 1 + r.Intn(300000)
		}
		sent := pattern(n, r.Int63())
		c.SetDeadline(time.Now().Add(limit))
		go func() {
			for rest := sent; len(rest) > 0; {
				n := 1 + len(rest)/2
				if n > len(rest) {
					n = len(rest)
				}
				if _, err := c.Write(rest[:n]); err != nil {
					fail("write: %v", err)
				}
				rest = rest[n:]
			}
		}()
		got := make([]byte, n)
		_, err := io.ReadFull(c, got)
		must(err, "read")
		if !bytes.Equal(got, sent) {
			fail("%d bytes differ", n)
		}
	}
	// The end of the stream comes back.
	must(c.(*net.TCPConn).CloseWrite(), "close write")
	rest, err := io.ReadAll(c)
	must(err, "read the end")
	if len(rest) != 0 {
		fail("%d bytes too many", len(rest))
	}
}

// short is a connection that is used once, and ends in one of several ways.
func short(address string, r *rand.Rand) {
	c := dial(address)
	defer c.Close()
	sent := pattern(1+r.Intn(2000), r.Int63())
	_, err := c.Write(append([]byte("E"), sent...))
	must(err, "write")
	switch r.Intn(5) {
	case 0: // Nothing is read.
		return
	case 1: // A reset.
		c.(*net.TCPConn).SetLinger(0)
		return
	case 2: // A goroutine that waits is woken by the deadline, and by the close.
		c.SetReadDeadline(time.Now().Add(time.Microsecond * time.Duration(r.Intn(3000))))
		io.Copy(io.Discard, c)
		go c.Close()
		c.Read(make([]byte, 1))
		return
	}
	got := make([]byte, len(sent))
	_, err = io.ReadFull(c, got)
	must(err, "read")
	if !bytes.Equal(got, sent) {
		fail("%d bytes differ", len(sent))
	}
}

func each(n int, f func(r *rand.Rand)) {
	var wg sync.WaitGroup
	for i := 0; i < n; i++ {
		wg.Add(1)
		r := rand.New(rand.NewSource(rand.Int63()))
		go func() {
			defer wg.Done()
			f(r)
		}()
	}
	wg.Wait()
}

func request(client *http.Client, url string, r *rand.Rand) {
	sent := pattern(r.Intn(20000), r.Int63())
	res, err := client.Post(url, "application/octet-stream", bytes.NewReader(sent))
	must(err, "post")
	got, err := io.ReadAll(res.Body)
	res.Body.Close()
	must(err, "body")
	if res.StatusCode != 200 || !bytes.Equal(got, sent) {
		fail("HTTP: status %d, %d bytes of %d", res.StatusCode, len(got), len(sent))
	}
}

func starts(r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	text := fmt.Sprint(r.Int63())
	cmd := exec.CommandContext(ctx, "/bin/cat")
	cmd.Stdin = bytes.NewReader([]byte(text))
	out, err := cmd.Output()
	must(err, "cat")
	if string(out) != text {
		fail("cat says %q", out)
	}
	if _, err := exec.Command("/no/such/program").Output(); !errors.Is(err, os.ErrNotExist) {
		fail("no such program: %v", err)
	}
}

func storm(address string, seconds int) {
	var stop atomic.Bool
	var did [5]atomic.Int64
	time.AfterFunc(time.Duration(seconds)*time.Second, func() { stop.Store(true) })
	url := web(address)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}, Timeout: limit}
	work := []func(r *rand.Rand){
		func(r *rand.Rand) { conversation(address, 1+r.Intn(20), r) },
		func(r *rand.Rand) { short(address, r) },
		func(r *rand.Rand) { request(client, url, r) },
		starts,
		func(r *rand.Rand) { // Garbage, and a loop that only a signal preempts.
			var kept [][]byte
			for i := 0; i < 200; i++ {
				kept = append(kept, make([]byte, r.Intn(10000)))
			}
			sum := 0
			for i := 0; i < 10000000; i++ {
				sum += i ^ len(kept)
			}
			if sum == 1 {
				runtime.GC()
			}
		},
	}
	var wg sync.WaitGroup
	for i := 0; i < 24; i++ {
		wg.Add(1)
		r := rand.New(rand.NewSource(rand.Int63()))
		go func() {
			defer wg.Done()
			for !stop.Load() {
				k := []int{0, 0, 1, 1, 1, 2, 2, 2, 3, 4}[r.Intn(10)]
				work[k](r)
				did[k].Add(1)
			}
		}()
	}
	wg.Wait()
	for i := range did {
		if did[i].Load() == 0 {
			fail("kind %d was never done", i)
		}
		fmt.Print(did[i].Load(), " ")
	}
	fmt.Println()
}

// held says "held" when all connections are there, and ends when each of them has ended.
func held(address string, n int) {
	conns := make([]net.Conn, n)
	for i := range conns {
		conns[i] = dial(address)
		_, err := conns[i].Write([]byte("Ex"))
		must(err, "write")
		_, err = io.ReadFull(conns[i], make([]byte, 1))
		must(err, "read")
	}
	fmt.Println("held")
	for _, c := range conns {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			fail("a connection whose server is gone: %d bytes, %v", n, err)
		}
	}
}

func hand(address string) {
	c := dial(address)
	_, err := c.Write([]byte("Ebefore"))
	must(err, "write")
	got := make([]byte, 6)
	_, err = io.ReadFull(c, got)
	must(err, "read")
	f, err := c.(*net.TCPConn).File()
	must(err, "file")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err, "listen")
	lf, err := l.(*net.TCPListener).File()
	must(err, "file")
	cmd := exec.Command(os.Args[0], "take")
	cmd.ExtraFiles = []*os.File{f, lf}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	must(cmd.Start(), "start")
	// The parent never accepts.
	conversation(l.Addr().String(), 20, rand.New(rand.NewSource(1)))
	must(cmd.Wait(), "program that was started")
	_, err = c.Write([]byte("after"))
	must(err, "write")
	_, err = io.ReadFull(c, got[:5])
	must(err, "read")
	if string(got[:5]) != "after" {
		fail("after: %q", got)
	}
}

// alone hands a connection whose other end it has itself to a program that it starts.
func alone() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err, "listen")
	go func() {
		for {
			c, err := l.Accept()
			must(err, "accept")
			go func() {
				if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
					echoes(c)
				}
			}()
		}
	}()
	for i := 0; i < 5; i++ {
		hand(l.Addr().String())
	}
}

func take() {
	c, err := net.FileConn(os.NewFile(3, "connection"))
	must(err, "connection")
	c.SetDeadline(time.Now().Add(limit))
	_, err = c.Write([]byte("within"))
	must(err, "write")
	got := make([]byte, 6)
	_, err = io.ReadFull(c, got)
	must(err, "read")
	if string(got) != "within" {
		fail("within: %q", got)
	}
	l, err := net.FileListener(os.NewFile(4, "listener"))
	must(err, "listener")
	n, err := l.Accept()
	must(err, "accept")
	io.ReadFull(n, got[:1])
	echoes(n)
}

func main() {
	args := os.Args[1:]
	switch {
	case len(args) == 2 && args[0] == "serve":
		serve(args[1])
	case len(args) == 4 && args[0] == "echo":
		each(number(args[2]), func(r *rand.Rand) { conversation(args[1], number(args[3]), r) })
	case len(args) == 4 && args[0] == "churn":
		each(number(args[2]), func(r *rand.Rand) {
			for i := 0; i < number(args[3]); i++ {
				short(args[1], r)
			}
		})
	case len(args) == 4 && args[0] == "http":
		url := web(args[1])
		n := number(args[2])
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n, MaxConnsPerHost: n}, Timeout: limit}
		each(n, func(r *rand.Rand) {
			for i := 0; i < number(args[3]); i++ {
				request(client, url, r)
			}
		})
	case len(args) == 3 && args[0] == "storm":
		storm(args[1], number(args[2]))
	case len(args) == 3 && args[0] == "held":
		held(args[1], number(args[2]))
	case len(args) == 2 && args[0] == "hand":
		hand(args[1])
	case len(args) == 1 && args[0] == "alone":
		alone()
	case len(args) == 1 && args[0] == "take":
		take()
	default:
		fail("usage: see the source")
	}
}
