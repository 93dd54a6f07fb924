// node_server.js PORT KIND: an HTTP server that answers a body's length and SHA-256, or N bytes made from a seed.
// KIND: single, cluster (workers share the listener by passing connections or handles), threads (the digest is
// made by a worker thread), child (by a child process).
'use strict';
const http = require('http');
const crypto = require('crypto');
const cluster = require('cluster');
const { Worker, isMainThread, parentPort } = require('worker_threads');
const { execFile } = require('child_process');

function digest(data) {
  return crypto.createHash('sha256').update(data).digest('hex');
}

function made(seed, size) {
  // As the client makes it.
  const block = crypto.createHash('sha512').update(seed).digest();
  return Buffer.alloc(size, block);
}

function serve(port, how) {
  const server = http.createServer((request, response) => {
    const parts = request.url.split('/');
    if (parts[1] === 'get') {
      const body = made(parts[2], Number(parts[3]));
      response.setHeader('X-Pid', process.pid);
      if (parts[4] === 'chunks') {
        for (let at = 0; at < body.length; at += 10000) response.write(body.subarray(at, at + 10000));
        response.end();
      } else {
        response.end(body);
      }
      return;
    }
    const chunks = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', () => how(Buffer.concat(chunks), (text) => response.end(text)));
  });
  server.keepAliveTimeout = 60000;
  server.listen({ port, host: '127.0.0.1', backlog: 512 });
  process.on('SIGTERM', () => process.exit(0));
}

function main() {
  const port = Number(process.argv[2]);
  const direct = (data, done) => done(`${data.length} ${digest(data)}`);
  switch (process.argv[3]) {
    case 'single':
      return serve(port, direct);
    case 'shared':
    case 'cluster':
      if (cluster.isPrimary) {
        // "shared": every worker accepts from the listener that the primary passes to it.
        if (process.argv[3] === 'shared') cluster.schedulingPolicy = cluster.SCHED_NONE;
        cluster.setupPrimary({ args: process.argv.slice(2) });
        for (let i = 0; i < 3; i++) cluster.fork();
        process.on('SIGTERM', () => {
          for (const worker of Object.values(cluster.workers)) worker.process.kill('SIGKILL');
          process.exit(0);
        });
        return;
      }
      return serve(port, direct);
    case 'threads': {
      const worker = new Worker(__filename);
      const waiting = new Map();
      let last = 0;
      worker.on('message', ({ id, text }) => {
        waiting.get(id)(text);
        waiting.delete(id);
      });
      return serve(port, (data, done) => {
        waiting.set(++last, done);
        worker.postMessage({ id: last, data });
      });
    }
    case 'child': {
      const script = 'const c=require("crypto").createHash("sha256");let n=0;process.stdin.on("data",(d)=>{n+=d.length;' +
        'c.update(d)}).on("end",()=>process.stdout.write(`${n} ${c.digest("hex")}`))';
      return serve(port, (data, done) => {
        const child = execFile(process.execPath, ['-e', script], (error, out) => done(error ? String(error) : out));
        child.stdin.end(data);
      });
    }
  }
}

if (isMainThread) {
  main();
} else {
  parentPort.on('message', ({ id, data }) => parentPort.postMessage({ id, text: `${data.length} ${digest(data)}` }));
}
