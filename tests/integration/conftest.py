"""Services on databases of their own, joined by an in-memory broker whose faults a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.handler_styles import PLAIN, HandlerStyle
from tests.support.migrated_databases import MigratedDatabases
from tests.support.service import SHARDS, Service, Wire
from tests.support.write_side_shop import Shop, sqlite_shop


@pytest.fixture
def wire() -> Wire:
    return Wire(MemoryBroker())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module in each of its HANDLER_STYLES, if it has any."""
    styles = getattr(metafunc.module, "HANDLER_STYLES", None)
    if styles is not None and "handler_style" in metafunc.fixturenames:
        is_plain = metafunc.definition.get_closest_marker("plain_handlers") is not None
        metafunc.parametrize("handler_style", [PLAIN] if is_plain else styles, ids=str)


@pytest.fixture
def handler_style() -> HandlerStyle:
    return PLAIN


@pytest.fixture
def make_service(
    databases: MigratedDatabases, wire: Wire, handler_style: HandlerStyle
) -> Iterator[Callable[..., Service]]:
    """Make services by name; each has a PostgreSQL database of its own."""
    with ExitStack() as closing:

        def make(name: str, **settings: Any) -> Service:
            shards, schema = settings.get("shards", SHARDS), settings.get("database_schema")
            url = closing.enter_context(databases.database(shards, schema))
            service = Service(name, url, wire, migrated=True, **{"style": handler_style} | settings)
            closing.callback(service.close)
            return service

        yield make


@pytest.fixture(scope="session")
def shop_url(databases: MigratedDatabases) -> Iterator[str]:
    """A migrated database that the tests of the write side share, one at a time."""
    with databases.database(shards=4) as url:
        Shop(url).close()
        yield url


@pytest.fixture
def postgres_shop(shop_url: str) -> Iterator[Shop]:
    """A service whose own code writes events, with empty tables."""
    opened = Shop(shop_url, migrate=False)
    opened.clear()
    yield opened
    opened.close()


@pytest.fixture(params=["postgresql", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A service with empty tables, on each database that shieldtx supports."""
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres_shop")
    else:
        opened = sqlite_shop(tmp_path / "shop.db")
        yield opened
        opened.close()
