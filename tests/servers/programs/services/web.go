package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
)

func check(fine bool, format string, values ...any) {
	if !fine {
		log.Fatalf(format, values...)
	}
}

// A client of HTTP with connections of its own.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: clients},
		// A client of a registry follows no redirection to another place.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// What a request is answered with, which must have this status.
func ask(c *http.Client, method, url string, status int, body []byte, headers ...string) ([]byte, http.Header) {
	r, err := http.NewRequest(method, url, bytes.NewReader(body))
	must(err)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := c.Do(r)
	must(err)
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	must(err)
	check(answer.StatusCode == status, "%s %s: status %d, %.200q", method, url, answer.StatusCode, got)
	return got, answer.Header
}

// The server behind Caddy: it sends what it is asked for, and the sum of what it has got.
func origin(address string) {
	must(http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var client, turn int
		if _, err := fmt.Sscanf(r.URL.Path, "/content/%d/%d", &client, &turn); err == nil {
			_, _ = w.Write(content(client, turn))
			return
		}
		sum := sha256.New()
		_, err := io.Copy(sum, r.Body)
		must(err)
		_, _ = w.Write(sum.Sum(nil))
	})))
}

// Files, whole and in parts, and what comes from behind the proxy.
func webClients(address, folder string, count int) {
	entries, err := os.ReadDir(folder)
	must(err)
	var connections [clients]*http.Client
	for i := range connections {
		connections[i] = newClient()
	}
	each(count, func(client, turn int) {
		c, base := connections[client], "http://"+address
		want := content(client, turn)
		got, _ := ask(c, "GET", fmt.Sprintf("%s/content/%d/%d", base, client, turn), 200, nil)
		same("what comes through the proxy", got, want)
		sum := sha256.Sum256(want)
		got, _ = ask(c, "POST", base+"/sum", 200, want)
		same("the sum of what went through the proxy", got, sum[:])
		name := entries[(client+turn)%len(entries)].Name()
		want, err := os.ReadFile(filepath.Join(folder, name))
		must(err)
		got, _ = ask(c, "GET", base+"/files/"+name, 200, nil)
		same(name, got, want)
		if len(want) > 100 {
			got, _ = ask(c, "GET", base+"/files/"+name, 206, nil, "Range", "bytes=10-99")
			same("a part of "+name, got, want[10:100])
		}
		ask(c, "GET", base+"/files/none", 404, nil)
		if turn%8 == 7 {
			c.CloseIdleConnections()
		}
	})
}
