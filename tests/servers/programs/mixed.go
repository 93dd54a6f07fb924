// mixed ADDRESS: a Go program whose C code makes connections of its own, and which use each other's descriptors.
package main

/*
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int open_connection(int port) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	return connect(fd, (struct sockaddr *)&a, sizeof a) ? -1 : fd;
}

// Writes a text and waits until it comes back.
static int ask(int fd, const char *text) {
	char got[64];
	size_t n = strlen(text), have = 0;
	if (write(fd, text, n) != (ssize_t)n)
		return 1;
	while (have < n) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		if (poll(&p, 1, 20000) != 1)
			return 2;
		ssize_t r = recv(fd, got + have, n - have, 0);
		if (r <= 0)
			return 3;
		have += r;
	}
	return memcmp(got, text, n) ? 4 : 0;
}
*/
import "C"

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
)

func wrong(what string, a ...any) {
	fmt.Fprintln(os.Stderr, append([]any{"wrong:", what}, a...)...)
	os.Exit(1)
}

func main() {
	_, text, err := net.SplitHostPort(os.Args[1])
	if err != nil {
		wrong("address", err)
	}
	port, _ := strconv.Atoi(text)
	var wg sync.WaitGroup
	for i := 0; i < 8; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := 0; j < 40; j++ {
				// C's connection, used by C and by Go's plain calls.
				fd := int(C.open_connection(C.int(port)))
				if fd < 0 {
					wrong("connect")
				}
				if r := C.ask(C.int(fd), C.CString("from C")); r != 0 {
					wrong("ask", r)
				}
				if n, err := syscall.Write(fd, []byte("from Go")); n != 7 {
					wrong("write", err)
				}
				got := make([]byte, 7)
				for have := 0; have < 7; {
					n, err := syscall.Read(fd, got[have:])
					if n <= 0 {
						wrong("read", err)
					}
					have += n
				}
				if string(got) != "from Go" {
					wrong(string(got))
				}
				syscall.Close(fd)
				// Go's connection, used by C.
				c, err := net.Dial("tcp", os.Args[1])
				if err != nil {
					wrong("dial", err)
				}
				raw, _ := c.(*net.TCPConn).SyscallConn()
				raw.Control(func(fd uintptr) {
					if r := C.ask(C.int(fd), C.CString("through C")); r != 0 {
						wrong("ask by Go's descriptor", r)
					}
				})
				c.(*net.TCPConn).CloseWrite()
				if rest, err := io.ReadAll(c); err != nil || len(rest) != 0 {
					wrong("end", rest, err)
				}
				c.Close()
			}
		}()
	}
	wg.Wait()
}
