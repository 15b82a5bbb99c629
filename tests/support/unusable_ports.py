"""Unusable ports: servers that close each connection, or accept none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_WITHIN_S = 20


@contextmanager
def hanging_up(answer: bytes) -> Iterator[int]:
    """Answer each connection with these bytes and close it; yield the port."""

    def serve() -> None:
        with suppress(OSError):  # closed
            while True:
                peer, _ = server.accept()
                with peer, suppress(OSError):
                    peer.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def full() -> Iterator[int]:
    """Let each connection wait endlessly, as with a firewall that drops packets; yield the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as clients:
        _fill(server, clients)
        yield server.getsockname()[1]


@contextmanager
def hanging_up_then_full(*, after: int) -> Iterator[int]:
    """Close the first connection after this many bytes, and let others wait; yield the port.

    Unread bytes turn the close into a reset.
    """

    def serve() -> None:
        first, _ = server.accept()
        with first:
            first.recv(after)
            _fill(server, clients)

    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as clients:
        server.settimeout(_WITHIN_S)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(_WITHIN_S)


def _fill(server: socket.socket, clients: ExitStack) -> None:
    """Fill the queue of connections that the server has not accepted."""
    for _ in range(2):
        client = clients.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(server.getsockname())
