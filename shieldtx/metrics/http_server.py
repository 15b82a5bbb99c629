"""The HTTP endpoints of a worker process: /metrics, /livez and /readyz."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import AF_INET, AF_INET6
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from shieldtx.domain.reasons import loggable, reason_of
from shieldtx.errors import ConfigurationError

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 16
"""The maximum number of clients at a time; further ones are disconnected."""
TIMEOUT_S: Final = 10.0
"""Seconds after which a client that sends or reads nothing is disconnected."""

_STOP_LOOK_S: Final = 0.05

Why: TypeAlias = Callable[[], str]
"""Returns why the answer of a probe is no, "" for yes."""
_Answer: TypeAlias = tuple[HTTPStatus, str, bytes]
_PLAIN: Final = "text/plain; charset=utf-8"


@contextmanager
def endpoints(
    address: str, *, metrics: Any, why_not_live: Why, why_not_ready: Why
) -> Iterator[str]:
    """Serve the endpoints in threads of their own during the block; yield the address in use.

    `metrics` is a collector of prometheus_client. `address` is host:port. Raises ConfigurationError
    where it cannot be listened at.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_ipv6 = ":" in host

    class Handler(_Handler):
        pages = _Pages(registry, {"/livez": why_not_live, "/readyz": why_not_ready})

    try:
        server = (_Server6 if is_ipv6 else _Server)((host, int(port)), Handler)
    except OSError as error:
        raise ConfigurationError(
            f"SHIELDTX_HTTP: cannot listen at {address}: {error.strerror or error}; each process "
            "on a host needs a port of its own, and port 0 takes a free one"
        ) from error
    serve = partial(server.serve_forever, poll_interval=_STOP_LOOK_S)
    thread = Thread(target=serve, name="shieldtx-http", daemon=True)
    thread.start()
    try:
        yield f"{f'[{host}]' if is_ipv6 else host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Pages:
    """The answers of the endpoints."""

    def __init__(self, registry: CollectorRegistry, probes: dict[str, Why]) -> None:
        self._registry = registry
        self._probes = probes

    def answer(self, path: str, accepted: str) -> _Answer:
        """Return the status, the type and the content of a page; any error is logged."""
        try:
            return self._answer(path, accepted)
        except Exception as error:
            log.exception(
                "HTTP endpoint failed",
                exc_info=loggable(error),
                extra={"action": "http_endpoint_failed", "path": path},
            )
            return HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, b"see the log\n"

    def _answer(self, path: str, accepted: str) -> _Answer:
        if path == "/metrics":
            encode, content_type = _encoder_for(accepted)
            return HTTPStatus.OK, content_type, encode(self._registry)
        if path not in self._probes:
            known = ", ".join(["/metrics", *self._probes])
            return HTTPStatus.NOT_FOUND, _PLAIN, f"nothing here; there are {known}\n".encode()
        if problem := self._probes[path]():
            return HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, f"{problem}\n".encode()
        return HTTPStatus.OK, _PLAIN, b"ok\n"


def _encoder_for(accepted: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Return the encoder of a format that the client accepts; by default that of plain text."""
    try:
        return choose_encoder(accepted)
    except (TypeError, ValueError):
        # prometheus_client reads some versions of formats as numbers.
        return choose_encoder("")


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; the base class refuses all other methods."""

    pages: _Pages
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        """Answer with a page."""
        self.wfile.write(self._send_head())

    def do_HEAD(self) -> None:
        """Answer with the head of a page."""
        self._send_head()

    def _send_head(self) -> bytes:
        path = self.path.partition("?")[0]
        status, content_type, content = self.pages.answer(path, self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        return content

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
        """Log nothing: requests come every few seconds."""


class _Server(ThreadingMixIn, TCPServer):
    """A thread for each request, up to a limit: a slow client delays no other."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    address_family = AF_INET

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._free = BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread, or disconnect a client above the limit."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread could start.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in the thread of the request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the base's
        """Log the error of a request, which the base class prints to standard error."""
        error = sys.exception()
        client = str(client_address)
        if isinstance(error, OSError):
            log.debug(
                "HTTP request was broken off",
                extra={
                    "action": "http_request_broken_off",
                    "client": client,
                    "error": reason_of(error),
                },
            )
        elif error is not None:
            log.error(
                "HTTP request failed",
                exc_info=loggable(error),
                extra={"action": "http_request_failed", "client": client},
            )


class _Server6(_Server):
    address_family = AF_INET6
