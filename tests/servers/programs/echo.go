// echo server PORT, echo client PORT COUNT: built without cgo for test_languages.py, and with it for test_go.py.
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
)

func wrong(err any) {
	fmt.Fprintln(os.Stderr, "wrong:", err)
	os.Exit(1)
}

func serve(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		wrong(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			wrong(err)
		}
		go func() {
			io.Copy(connection, connection)
			connection.Close()
		}()
	}
}

func ask(address string, n int) {
	data := make([]byte, []int{1, 100, 5000, 70000, 400000}[n%5])
	rand.New(rand.NewSource(int64(n))).Read(data)
	connection, err := net.Dial("tcp", address)
	if err != nil {
		wrong(err)
	}
	go func() {
		connection.Write(data)
		connection.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(connection)
	if err != nil || !bytes.Equal(got, data) {
		wrong(fmt.Sprint("connection ", n, ": ", len(got), " of ", len(data), " bytes ", err))
	}
	connection.Close()
}

func main() {
	address := "127.0.0.1:" + os.Args[2]
	if os.Args[1] == "server" {
		serve(address)
	}
	count, _ := strconv.Atoi(os.Args[3])
	done := make(chan bool)
	for t := 0; t < 8; t++ {
		go func(t int) {
			for n := t; n < count; n += 8 {
				ask(address, n)
			}
			done <- true
		}(t)
	}
	for t := 0; t < 8; t++ {
		<-done
	}
	fmt.Println("fine")
}
