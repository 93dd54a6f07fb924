// server.js PORT [WORKERS]: the page, by one process or by a cluster of workers.
"use strict";

const cluster = require("node:cluster");
const http = require("node:http");

const [port, workers] = process.argv.slice(2).map(Number);
const page = "x".repeat(1000);

if (workers && cluster.isPrimary) {
  for (let i = 0; i < workers; i++) cluster.fork();
} else {
  http.createServer((request, response) => {
    response.writeHead(200, { "Content-Type": "text/plain", "Content-Length": page.length });
    response.end(page);
  }).listen(port, "127.0.0.1", 511);
}
