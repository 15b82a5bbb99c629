"""`shieldtx consumers`: pause, resume and list, and paused handlers in `shieldtx status`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from shieldtx.domain.states import TxKind
from shieldtx.store.pauses import SqlPauseStore
from tests.support.shop_commands import Run, runner_on
from tests.support.write_side_shop import Shop, sqlite_shop

NO_PAUSE = "no handler is paused\n"
RESUME = "shieldtx consumers resume stock orders.moved"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    opened = sqlite_shop(tmp_path / "shop.db")
    yield opened
    opened.close()


@pytest.fixture
def run(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner_on(shop, tmp_path, monkeypatch)


def test_pause_is_listed_recorded_and_ends_with_resume(run: Run, shop: Shop) -> None:
    assert run("consumers", "list").output == NO_PAUSE
    paused = run("consumers", "pause", "stock", "orders.placed", "--reason", "odd", "--who", "ann")
    assert (paused.exit_code, paused.output) == (0, "orders.placed of group stock is paused\n")

    [listed] = json.loads(run("consumers", "list", "--json").output)
    assert listed.pop("since")
    assert listed == {
        "group": "stock",
        "event_type": "orders.placed",
        "kind": "*",
        "by": "ann",
        "reason": "odd",
        "has_probes": False,
        "is_declared": True,
    }
    line = run("consumers", "list", app=False).output
    assert line.startswith("group stock is paused for orders.placed since ")
    assert line.endswith(" by ann, until an operator resumes it: odd\n")
    assert line in run("status").output
    assert len(json.loads(run("status", "--json").output)["paused"]) == 1

    resumed = run("consumers", "resume", "stock", "orders.placed", "--json", app=False)
    assert resumed.exit_code == 0
    assert json.loads(resumed.output) == {
        "group": "stock",
        "event_type": "orders.placed",
        "ended": 1,
        "is_paused": False,
    }
    assert run("consumers", "list").output == NO_PAUSE
    with shop.engine.connect() as connection:
        found = connection.execute(text("SELECT action, subject FROM shield_audit ORDER BY id"))
        entries = [tuple(row) for row in found]
    assert entries == [("pause", "stock/orders.placed"), ("resume", "stock/orders.placed")]


@pytest.mark.parametrize(
    ("event_type", "app", "end"),
    [
        ("orders.placed", True, "until a probe succeeds"),
        (
            "orders.moved",
            True,
            f"without probes, because this application has no such handler: {RESUME}",
        ),
        ("orders.moved", False, "until a probe succeeds"),
    ],
)
def test_pause_of_an_undeclared_handler_is_listed_as_such(
    run: Run, shop: Shop, event_type: str, app: bool, end: str
) -> None:
    SqlPauseStore(shop.engine, shop.tables).trip(
        "stock", (event_type, TxKind.COMMIT), reason="KeyError", first_probe=timedelta(seconds=5)
    )
    assert run("consumers", "list", app=app).output.endswith(f" by breaker, {end}: KeyError\n")


def test_second_pause_of_a_type_has_the_newest_reason(run: Run) -> None:
    for reason in ("first", "second"):
        assert run("consumers", "pause", "stock", "--reason", reason).exit_code == 0
    [listed] = json.loads(run("consumers", "list", "--json").output)
    assert (listed["event_type"], listed["reason"]) == ("*", "second")


def test_a_type_of_a_paused_group_stays_paused(run: Run) -> None:
    run("consumers", "pause", "stock")
    resumed = run("consumers", "resume", "stock", "orders.placed")
    assert resumed.exit_code == 1
    assert "the whole group is still paused, by " in resumed.output
    assert run("consumers", "resume", "stock").output == "group stock is resumed\n"
    assert run("consumers", "resume", "stock").exit_code == 1
    assert "no group stokc (groups: stock)" in run("consumers", "resume", "stokc").output


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("stokc",), "(groups: stock)"),
        (("stock", "orders.plcaed"), "(types: orders.placed)"),
        (("stock", "--reason", " "), "--reason"),
    ],
)
def test_mistyped_name_pauses_nothing(run: Run, words: tuple[str, ...], named: str) -> None:
    refused = run("consumers", "pause", *words)
    assert refused.exit_code == 2
    assert named in refused.output
    assert run("consumers", "list").output == NO_PAUSE


def test_pause_without_an_application_is_refused(run: Run) -> None:
    assert run("consumers", "pause", "stock", app=False).exit_code == 2
