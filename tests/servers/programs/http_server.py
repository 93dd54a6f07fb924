"""http_server.py PORT DIRECTORY: Python's threading HTTP server with uploads by PUT and POST."""

import hashlib
import os
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        """The request's body, by length or in chunks, in pieces."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while True:
                size = int(self.rfile.readline().split(b";")[0], 16)
                data = self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    return
                yield data
        left = int(self.headers.get("Content-Length", 0))
        while left:
            data = self.rfile.read(min(left, 65536))
            if not data:
                raise ConnectionError("the body is cut off")
            left -= len(data)
            yield data

    def do_PUT(self):
        digest = hashlib.sha256()
        with open(os.path.join(self.directory, os.path.basename(self.path)), "wb") as f:
            for part in self.body():
                digest.update(part)
                f.write(part)
        answer = digest.hexdigest().encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PUT

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", int(sys.argv[1])), partial(Handler, directory=sys.argv[2])).serve_forever()
