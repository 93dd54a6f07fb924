"""The page as a WSGI application (app:wsgi, for gunicorn) and as an ASGI application (app:asgi, for uvicorn)."""

PAGE = b"x" * 1000
HEADERS = (("Content-Type", "text/plain"), ("Content-Length", str(len(PAGE))))


def wsgi(_environ, start_response):
    start_response("200 OK", list(HEADERS))
    return [PAGE]


async def asgi(scope, receive, send):
    assert scope["type"] == "http"
    headers = [(name.encode(), value.encode()) for name, value in HEADERS]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": PAGE})
