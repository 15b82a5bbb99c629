"""A real HTTP server that receives what a webhook sends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(kw_only=True)
class WebhookServer:
    """The requests so far, and the responses to come: a status each, then `status` for ever."""

    url: str
    status: int = 204
    statuses: list[int] = field(default_factory=list)
    location: str | None = None
    stalls: bool = False
    """Respond to nothing until the end of the test."""
    over: threading.Event = field(default_factory=threading.Event)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)


@contextmanager
def webhook_server() -> Iterator[WebhookServer]:
    """Start a server on a free port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            known.methods.append(self.command)
            length = int(self.headers["Content-Length"])
            known.bodies.append(json.loads(self.rfile.read(length)))
            known.headers.append({name.lower(): value for name, value in self.headers.items()})
            if known.stalls:
                known.over.wait(30)
                return
            self.send_response(known.statuses.pop(0) if known.statuses else known.status)
            if known.location is not None:
                self.send_header("Location", known.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            known.methods.append(self.command)
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            """Keep the output of the tests free of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known = WebhookServer(url=f"http://127.0.0.1:{server.server_port}/hook/s3cret-path")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield known
    finally:
        known.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
