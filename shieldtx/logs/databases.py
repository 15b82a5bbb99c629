"""Which database an error comes from: its address and role, never its password."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sqlalchemy import URL, Engine, event, make_url
from sqlalchemy.engine import ExceptionContext

_SETTING: Final = "SHIELDTX_DATABASE_URL"
_ATTRIBUTE: Final = "shieldtx_database"


@dataclass(frozen=True, kw_only=True, slots=True)
class Database:
    """The database of an engine."""

    place: str
    """As in `shop@127.0.0.1:5432/orders`."""
    role: str | None

    @property
    def named(self) -> str:
        """The setting that leads to the database, and the place; the place alone for any other."""
        with suppress(Exception):
            if _place_of(make_url(os.environ[_SETTING])) == self.place:
                return f"{_SETTING} ({self.place})"
        return self.place


def name_databases() -> None:
    """Attach to every database error of this process the database that it comes from."""
    if not event.contains(Engine, "handle_error", _attach):
        event.listen(Engine, "handle_error", _attach)


def database_of(error: BaseException) -> Database | None:
    """Return the database that an error comes from; None where it was not attached."""
    found = getattr(error, _ATTRIBUTE, None)
    return found if isinstance(found, Database) else None


def _attach(context: ExceptionContext) -> None:
    if context.sqlalchemy_exception is not None and context.engine is not None:
        url = context.engine.url
        database = Database(place=_place_of(url), role=url.username)
        setattr(context.sqlalchemy_exception, _ATTRIBUTE, database)


def _place_of(url: URL) -> str:
    """Return account, servers and name of a database."""
    return f"{url.username}@{address_of(url)}" if url.username else address_of(url)


def address_of(url: URL) -> str:
    """Return servers and name of a database, without its account: an option may be a password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ":memory:"
    return f"{_servers_of(url)}/{url.database or ''}"


def _servers_of(url: URL) -> str:
    if url.host:
        host = f"[{url.host}]" if ":" in url.host else url.host
        return f"{host}:{url.port}" if url.port else host
    given = url.query.get("host", ())
    return ",".join((given,) if isinstance(given, str) else given)
