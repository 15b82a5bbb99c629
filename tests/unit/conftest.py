"""A shop on SQLite, for tests that need no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shieldtx import Settings, ShieldTx
from tests.support.write_side_shop import SHARDS, Shop, sqlite_shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    opened = sqlite_shop(tmp_path / "shop.db")
    yield opened
    opened.close()


@pytest.fixture
def shield(shop: Shop) -> ShieldTx:
    """An application on the shop's database, without declarations."""
    settings = Settings(source="shop", database_url=str(shop.engine.url), shards=SHARDS)
    return ShieldTx(settings, engine=shop.engine)
