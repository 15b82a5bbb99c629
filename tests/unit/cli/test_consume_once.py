"""The output of `consume --once`: what it has done, and what is left."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from shieldtx.cli import workers

DONE = {"records": 2, "fresh": 2, "duplicates": 0, "parked": 0, "applied": 2}


def consume(monkeypatch: pytest.MonkeyPatch, count: Any, *, as_json: bool) -> None:
    """Show a run that is over, after which `count` counts the unfinished events."""
    rows = SimpleNamespace(count=count)
    app = SimpleNamespace(stores=SimpleNamespace(unfinished_rows=lambda: rows))
    monkeypatch.setattr(workers, "_checked", lambda _: app)
    monkeypatch.setattr(workers, "check_group", lambda *_, **__: None)
    monkeypatch.setattr(workers, "_consume_once", lambda *_: (DONE, 3))
    workers.consume(None, "stock", once=True, as_json=as_json)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "shown"), [(9_999, "9,999"), (10_000, "10,000 or more")])
def test_count_stops_at_its_limit(
    rows: int, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    consume(monkeypatch, lambda group, *, limit: min(rows, limit), as_json=False)
    assert capsys.readouterr().out == (
        "2 records, 2 fresh, 0 duplicates, 0 parked, 2 applied\n"
        f"events unfinished in the inbox: {shown}; partitions paused: 3\n"
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_counts_are_printed_before_the_error_of_the_last_count(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*_: Any, **__: Any) -> int:
        raise ConnectionError("the database has gone")

    with pytest.raises(ConnectionError):
        consume(monkeypatch, unreachable, as_json=as_json)

    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out) == DONE | {"paused_partitions": 3}
    else:
        assert out == "2 records, 2 fresh, 0 duplicates, 0 parked, 2 applied\n"
