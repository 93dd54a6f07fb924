"""http_client.py PORT again PATH SHA256: a connection per request until SIGINT; any error ends it badly."""

import hashlib
import http.client
import signal
import sys

stop = False


def finish(*_):
    global stop
    stop = True


def again(port, path, wanted):
    count = 0
    while not stop:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        data = response.read()
        if response.status != 200 or hashlib.sha256(data).hexdigest() != wanted:
            sys.exit(f"wrong: request {count}: status {response.status}, {len(data)} bytes")
        connection.close()
        count += 1
        print(count, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, finish)
    globals()[sys.argv[2]](int(sys.argv[1]), *sys.argv[3:])
