"""The circumstances of a run: its release, its configuration, its databases, and the run before."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseAddress:
    """The database of a service, without user, password and options."""

    service: str
    address: str
    """`host:port/database`."""
    replica: str | None = None
    """The replica from which rows are read, in the same form; None: there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRun:
    """The latest completed run before this one that judged more than a span of time."""

    run_id: str
    started_at: datetime
    outcome: str
    page: str | None = None
    """The address of its report, relative to the report of this run; None: it is not there."""
    totals: Mapping[str, int] | None = None
    """The number of events by verdict; None: the run judged by another configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """The circumstances of a run; all values are empty in the findings of earlier releases."""

    version: str = ""
    """The release of shieldtx."""
    configuration: str = ""
    """The name under which the run is stored."""
    options: tuple[str, ...] = ()
    """The options of a command line that name the configuration."""
    databases: tuple[DatabaseAddress, ...] = ()
    earlier: EarlierRun | None = None

    @property
    def command_options(self) -> str:
        """The options that name the configuration, quoted for a shell."""
        return shlex.join(self.options)


def address_of(url: str) -> str:
    """Return the host, the port and the database of a URL, and none of its secrets."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return "unknown"
    host = parsed.host or parsed.query.get("host") or ""
    host = ",".join(host) if isinstance(host, tuple) else host
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{parsed.port or 5432}/{parsed.database or ''}"
