"""Ports on 127.0.0.1 that a server can leave and come back to."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
_LOWEST_PORT: Final = 15_000
_TRIES: Final = 200


def free_port() -> int:
    """Return a port that nobody listens on, outside the range of outgoing connections.

    The kernel gives ports of that range to clients: while a server is being restarted, its port
    could go to a client, even to one that dials this very port and so reaches itself.
    """
    candidates = range(_LOWEST_PORT, _first_outgoing_port())
    for _ in range(_TRIES if candidates else 0):
        # Chance, not order: two runs that look at the same time must not find the same port.
        port = random.choice(candidates)  # noqa: S311 - nothing here is secret
        if _can_bind(port):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def accepts_connections(port: int, *, timeout: float = 1.0) -> bool:
    """Tell whether somebody listens on the port; `timeout` in seconds."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout) as connection:
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections in TIME_WAIT are no obstacle, a listener is.
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
