from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, func

from shieldtx._resources import resource_folder
from shieldtx.store import migration_scripts
from tests.support.revisions import LATER, LATER_REVISION


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


class Releases:
    """Installs migrations into this process: the real ones, or those of a later release."""

    def __init__(self, later: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folders = {"this": resource_folder("migrations"), "later": later}
        self._monkeypatch = monkeypatch

    def install(self, release: str) -> None:
        self._monkeypatch.setattr(
            migration_scripts, "resource_folder", lambda _: self._folders[release]
        )


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Releases:
    later = tmp_path / "later_release"
    shutil.copytree(
        resource_folder("migrations"), later, ignore=shutil.ignore_patterns("__pycache__")
    )
    (later / "versions" / f"{LATER}_note.py").write_text(LATER_REVISION)
    return Releases(later, monkeypatch)


@pytest.fixture
def an_event() -> dict[str, Any]:
    """Return the row of an event that waits in the outbox."""
    return {
        "event_id": uuid4(),
        "shard": 7,
        "source": "orders",
        "topic": "orders",
        "event_type": "orders.placed",
        "tx_kind": "COMMIT",
        "operation": "INSERT",
        "key": "customer-1",
        "payload": "{}",
        "status": "INIT",
        "waiting": False,
        "holds_key": False,
        "due_at": func.now(),
        "unconfirmed": False,
        "created_at": func.now(),
    }
