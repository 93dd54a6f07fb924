// node_client.js PORT REQUESTS [light]: requests over a keep-alive agent and over fresh connections, contents
// compared; then connections that the client destroys in the middle. "light": a few requests only.
'use strict';
const http = require('http');
const net = require('net');
const crypto = require('crypto');

const port = Number(process.argv[2]);
const requests = Number(process.argv[3]);
const light = process.argv[4] === 'light';

function wrong(why) {
  console.error(`wrong: ${why}`);
  process.exit(1);
}

function ask(agent, method, path, body) {
  return new Promise((done, fail) => {
    const request = http.request({ port, host: '127.0.0.1', method, path, agent }, (response) => {
      const chunks = [];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('end', () => done(Buffer.concat(chunks)));
      response.on('error', fail);
    });
    request.on('error', fail);
    request.end(body);
  });
}

async function work(agent, n) {
  const size = [0, 1, 100, 5000, 70000, 1000000][n % 6];
  if (n % 2) {
    const body = crypto.randomBytes(size);
    const text = String(await ask(agent, 'POST', '/sum', body));
    const wanted = `${size} ${crypto.createHash('sha256').update(body).digest('hex')}`;
    if (text !== wanted) wrong(`a body of ${size} bytes: ${text}`);
  } else {
    const block = crypto.createHash('sha512').update(`s${n}`).digest();
    const got = await ask(agent, 'GET', `/get/s${n}/${size}${n % 4 ? '/chunks' : ''}`);
    if (!got.equals(Buffer.alloc(size, block))) wrong(`${got.length} of ${size} bytes, request ${n}`);
  }
}

async function many(agent, count, width) {
  let next = 0;
  await Promise.all(Array.from({ length: width }, async () => {
    while (next < count) await work(agent, next++);
  }));
}

function destroyed(n) {
  return new Promise((done, fail) => {
    const s = net.connect(port, '127.0.0.1', () => s.write(`GET /get/d${n}/500000 HTTP/1.1\r\nHost: x\r\n\r\n`));
    s.once('data', () => s.destroy());
    s.on('close', done);
    s.on('error', fail);
  });
}

async function main() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
  await many(agent, requests, 16);
  agent.destroy();
  await many(false, Math.ceil(requests / 4), 8);
  if (!light) for (let n = 0; n < 30; n++) await destroyed(n);
  console.log('fine');
}

main().catch((error) => wrong(error.stack));
