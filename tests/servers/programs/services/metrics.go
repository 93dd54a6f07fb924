package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const series = 500

// Gauges whose values are known, and a counter of what Prometheus has fetched.
func exporter(address string) {
	all := prometheus.NewRegistry()
	known := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "known", Help: "The square of the number."}, []string{"number"})
	fetched := prometheus.NewCounter(prometheus.CounterOpts{Name: "fetched", Help: "How often this was fetched."})
	all.MustRegister(known, fetched)
	for i := range series {
		known.WithLabelValues(strconv.Itoa(i)).Set(float64(i * i))
	}
	handler := promhttp.HandlerFor(all, promhttp.HandlerOpts{})
	must(http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched.Inc()
		handler.ServeHTTP(w, r)
	})))
}

// The values that Prometheus has for an expression, by their label `number`.
func query(c *http.Client, address, expression string) map[string]float64 {
	text, _ := ask(c, "GET", "http://"+address+"/api/v1/query?query="+url.QueryEscape(expression), 200, nil)
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	must(json.Unmarshal(text, &answer))
	found := map[string]float64{}
	for _, one := range answer.Data.Result {
		value, err := strconv.ParseFloat(one.Value[1].(string), 64)
		must(err)
		found[one.Metric["number"]] = value
	}
	return found
}

// Waits until Prometheus, which listens before it can answer, says that it is ready.
func await(c *http.Client, address string) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		answer, err := c.Get("http://" + address + "/-/ready")
		must(err)
		_, err = io.Copy(io.Discard, answer.Body)
		must(err)
		must(answer.Body.Close())
		if answer.StatusCode == http.StatusOK {
			return
		}
		check(time.Now().Before(end), "Prometheus is not ready: status %d", answer.StatusCode)
	}
}

// Asks Prometheus for what it has, also of a time at which the exporter's answer came too late, after it has
// fetched the exporter's values `count` times.
func metricsClients(address string, count int) {
	c := newClient()
	await(c, address)
	for end := time.Now().Add(time.Minute); query(c, address, "max_over_time(fetched[5m])")[""] < float64(count); {
		check(time.Now().Before(end), "Prometheus fetches nothing")
	}
	each(count, func(client, turn int) {
		found := query(c, address, "last_over_time(known[5m])")
		check(len(found) == series, "Prometheus has %d series of %d", len(found), series)
		for number, value := range found {
			i, err := strconv.Atoi(number)
			must(err)
			check(value == float64(i*i), "Prometheus has %v for %d", value, i)
		}
	})
	check(query(c, address, fmt.Sprintf("sum(last_over_time(known[5m])) == bool %d", (series-1)*series*(2*series-1)/6))[""] == 1, "the sum is another one")
}
