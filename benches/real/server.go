// server PORT: the page.
package main

import (
	"bytes"
	"log"
	"net/http"
	"os"
)

func main() {
	page := bytes.Repeat([]byte("x"), 1000)
	http.HandleFunc("/page", func(answer http.ResponseWriter, _ *http.Request) {
		answer.Header().Set("Content-Type", "text/plain")
		answer.Write(page)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
