"""Ports on 127.0.0.1 that a server can release and bind again."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
_LOWEST_PORT: Final = 15_000
_TRIES: Final = 200


def free_port() -> int:
    """Return an unused port, outside the range of outgoing connections.

    The kernel assigns ports of that range to clients. While a server is being restarted, its port
    could go to a client, even to one that dials this port and so connects to itself.
    """
    candidates = range(_LOWEST_PORT, _first_outgoing_port())
    for _ in range(_TRIES if candidates else 0):
        # Random, not in order: two runs that search at the same time must not find the same port.
        port = random.choice(candidates)  # noqa: S311 - nothing here is secret
        if can_bind(port):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def accepts_connections(port: int, *, timeout: float = 1.0) -> bool:
    """Return whether a server listens on the port; `timeout` in seconds."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout) as connection:
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False


def can_bind(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers do: connections in TIME_WAIT do not block the port, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _first_outgoing_port() -> int:
    try:
        limits = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    except OSError:
        return 32_768
    return int(limits.split()[0])
