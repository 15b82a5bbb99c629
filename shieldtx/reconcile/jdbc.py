"""The JDBC address of a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from shieldtx.errors import ConfigurationError

DRIVER = "org.postgresql.Driver"

# libpq's name: the name of the same setting in PostgreSQL's JDBC driver.
_PASSED_ON = {
    "application_name": "ApplicationName",
    "channel_binding": "channelBinding",
    "connect_timeout": "connectTimeout",
    "options": "options",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslmode": "sslmode",
    "sslpassword": "sslpassword",
    "sslrootcert": "sslrootcert",
}
# Settings for keepalive and text encoding: the JDBC driver has its own way for both.
_LEFT_OUT = {
    "client_encoding",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
}
_DEFAULTS = {
    "ApplicationName": "shieldtx reconcile",
    "connectTimeout": "10",
    "tcpKeepAlive": "true",
    # "always": the whole session is read-only, not only transactions that request it.
    "readOnly": "true",
    "readOnlyMode": "always",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class JdbcAddress:
    """A JDBC URL without secrets, and the connection properties, with user and password."""

    url: str
    properties: Mapping[str, str] = field(repr=False)


def jdbc_address(service: str, url: str) -> JdbcAddress:
    """Translate the SQLAlchemy URL of a service's database.

    Raises ConfigurationError for a URL that JDBC cannot express; the message never repeats the URL.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"the database URL of service {service!r} cannot be read: it should look like "
            "postgresql+psycopg://user:password@host:5432/database"
        ) from None
    if parsed.get_backend_name() != "postgresql":
        raise ConfigurationError(
            f"service {service!r} is on {parsed.get_backend_name()}: the reconciliation reads "
            "PostgreSQL only"
        )
    if not parsed.host or parsed.host.startswith("/") or "host" in parsed.query:
        raise ConfigurationError(
            f"the database URL of service {service!r} names no single host before the database: "
            "the reconciliation connects by TCP, so write //user:password@host:5432/database"
        )
    if not parsed.database or not parsed.username:
        raise ConfigurationError(
            f"the database URL of service {service!r} must name both a user and a database"
        )
    properties = {**_DEFAULTS, "driver": DRIVER, "user": parsed.username}
    if parsed.password is not None:
        properties["password"] = str(parsed.password)
    for name, value in parsed.query.items():
        if name in _LEFT_OUT:
            continue
        if name not in _PASSED_ON or not isinstance(value, str):
            raise ConfigurationError(
                f"the database URL of service {service!r} sets {name!r}, which the reconciliation "
                f"cannot hand to JDBC: leave it out (possible: {', '.join(sorted(_PASSED_ON))})"
            )
        properties[_PASSED_ON[name]] = value
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    address = f"jdbc:postgresql://{host}:{parsed.port or 5432}/{quote(parsed.database, safe='')}"
    return JdbcAddress(url=address, properties=properties)
