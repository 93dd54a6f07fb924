"""Web applications that answer a body with itself, and GET /N with N bytes; and a client of aiohttp.

WSGI: web_app:wsgi. ASGI: web_app:asgi. aiohttp: web_app:make, or web_app.py server PORT. web_app.py client PORT COUNT SEED compares.
"""

import sys


def content(size):
    return (b"0123456789abcde\n" * (size // 16 + 1))[:size]


def wsgi(environ, start_response):
    if environ["REQUEST_METHOD"] == "POST":
        body = environ["wsgi.input"].read()
    else:
        body = content(int(environ["PATH_INFO"][1:]))
    start_response("200 OK", [("Content-Length", str(len(body))), ("Content-Type", "application/octet-stream")])
    return [body]


async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["method"] != "POST":
        body = content(int(scope["path"][1:]))
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def make():
    from aiohttp import web

    async def post(request):
        return web.Response(body=await request.read())

    async def get(request):
        return web.Response(body=content(int(request.match_info["size"])))

    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.post("/", post), web.get("/{size}", get)])
    return app


def client(port, count, seed):
    import asyncio
    import random

    import aiohttp

    async def one(session, n):
        size = [0, 1, 100, 5000, 70000, 1500000][n % 6]
        url = f"http://127.0.0.1:{port}/"
        if n % 2:
            data = random.Random(f"{seed}:{n}").randbytes(size)
            async with session.post(url, data=data) as response:
                got = await response.read()
        else:
            data = content(size)
            async with session.get(f"{url}{size}") as response:
                got = await response.read()
        if response.status != 200 or got != data:
            sys.exit(f"wrong: request {n}: status {response.status}, {len(got)} of {len(data)} bytes")

    async def main():
        for close in (False, True):
            connector = aiohttp.TCPConnector(limit=10, force_close=close)
            async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
                await asyncio.gather(*(one(session, n) for n in range(count)))

    asyncio.run(main())
    print("fine")


if __name__ == "__main__":
    if sys.argv[1] == "server":
        from aiohttp import web
        web.run_app(make(), host="127.0.0.1", port=int(sys.argv[2]), print=None)
    else:
        client(*map(int, sys.argv[2:5]))
