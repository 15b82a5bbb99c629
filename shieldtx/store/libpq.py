"""The parameters of libpq and of the server's session by which shieldtx connects to PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import URL

# The client notices a vanished server within a minute, not after the kernel's two hours.
_LIVELINESS: Mapping[str, int] = MappingProxyType(
    {
        "connect_timeout": 10,  # s
        "keepalives": 1,
        "keepalives_idle": 30,  # s
        "keepalives_interval": 10,  # s
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,  # ms
    }
)


SILENCE_LIMITS = ("idle_in_transaction_session_timeout", "tcp_user_timeout")
"""The server's limits for a client that sends nothing, and for a client that reads nothing."""

_LARGEST_MS = 2**31 - 1


def limit_ms(limit: timedelta) -> int:
    """Return a limit in milliseconds, at most the server's maximum of 24 days."""
    return min(int(limit.total_seconds() * 1000), _LARGEST_MS)


def connection_parameters(url: URL) -> dict[str, Any]:
    """Return the parameters that detect a silent server; parameters of the URL prevail."""
    given = set(url.query) | ({"connect_timeout"} if "PGCONNECT_TIMEOUT" in os.environ else set())
    return {name: value for name, value in _LIVELINESS.items() if name not in given}


def session_options(url: URL, *, idle: timedelta) -> str:
    """Return the server's options for a session of shieldtx.

    The server ends a transaction whose client has been silent for `idle`: a stopped process would
    otherwise keep its row locks, and its shards. The same happens if the client stops reading a
    large result. A pooled connection may be idle between transactions. Times are exchanged in UTC,
    whatever the server's TimeZone.

    Options of the URL, or of libpq's environment if the URL has none, prevail. They do not prevail
    over the isolation level: shieldtx's statements are written for READ COMMITTED.
    """
    given = url.query.get("options", os.environ.get("PGOPTIONS", ""))
    theirs = given if isinstance(given, str) else " ".join(given)
    milliseconds = limit_ms(idle)
    return " ".join(
        (
            *(f"-c {name}={milliseconds}" for name in SILENCE_LIMITS),
            "-c idle_session_timeout=0",
            "-c TimeZone=UTC",
            *([theirs.strip()] if theirs.strip() else []),
            r"-c default_transaction_isolation=read\ committed",
        )
    )
