"""The output of `consume --once` where the count of what is left fails."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from shieldtx.cli import workers

DONE = {"records": 2, "fresh": 2, "duplicates": 0, "parked": 0, "applied": 2}


@pytest.mark.parametrize("as_json", [False, True])
def test_counts_are_printed_before_the_error_of_the_last_count(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*_: Any, **__: Any) -> int:
        raise ConnectionError("the database has gone")

    rows = SimpleNamespace(count=unreachable)
    app = SimpleNamespace(stores=SimpleNamespace(unfinished_rows=lambda: rows))
    monkeypatch.setattr(workers, "_checked", lambda _: app)
    monkeypatch.setattr(workers, "check_group", lambda *_, **__: None)
    monkeypatch.setattr(workers, "_consume_once", lambda *_: DONE)

    with pytest.raises(ConnectionError):
        workers.consume(None, "stock", once=True, as_json=as_json)  # type: ignore[arg-type]

    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out) == DONE
    else:
        assert out == "2 records, 2 fresh, 0 duplicates, 0 parked, 2 applied\n"
