"""Databases with another encoding than UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine

from tests.support.service import Service


@contextmanager
def of_another_encoding(service: Service) -> Iterator[Service]:
    """Create an empty database in LATIN1 for the service, in addition to its own."""
    own = service.engine.url
    name = f"{own.database}_latin"
    server = create_engine(own, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        )
        url = own.set(database=name).render_as_string(hide_password=False)
        latin = Service("stock", url, service.app.broker)
        try:
            yield latin
        finally:
            latin.close()
            connection.exec_driver_sql(f"DROP DATABASE {name}")
    server.dispose()
