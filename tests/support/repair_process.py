"""A repair in a separate process, which kills itself between two of its steps."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from shieldtx.reconcile.repair.listed_rows import listed_rows
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.repair import SqlRepairStore
from tests.support.repair_scenarios import repair

BATCH = 4

PLACES = ("before the write", "before the audit", "before the commit", "between two batches")


class Breaker:
    """Kills this process when it reaches a place for the nth time."""

    def __init__(self, nth: int) -> None:
        self._times = count(1)
        self._nth = nth

    def reach(self, *_: Any) -> None:
        if next(self._times) == self._nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, statement: str) -> None:
        def look(connection: Any, cursor: Any, text: str, *rest: Any) -> None:
            if re.match(statement, text):
                self.reach()

        event.listen(Engine, "before_cursor_execute", look)

    def after_each_batch(self) -> None:
        def reaching(whole: Callable[..., Any]) -> Callable[..., Any]:
            def batch(*args: Any, **named: Any) -> Any:
                done = whole(*args, **named)
                self.reach()
                return done

            return batch

        SqlRepairStore.repair = reaching(SqlRepairStore.repair)
        SqlRepairStore.hand_over = reaching(SqlRepairStore.hand_over)


def kill_at(place: str, nth: int) -> None:
    """Arm one of the places."""
    breaker = Breaker(nth)
    match place:
        case "before the write":
            breaker.before("UPDATE shield_|INSERT INTO shield_(out|in)box")
        case "before the audit":
            breaker.before("INSERT INTO shield_audit")
        case "before the commit":
            event.listen(Engine, "commit", breaker.reach)
        case "between two batches":
            breaker.after_each_batch()
        case _:
            raise ValueError(place)


def main(orders_url: str, stock_url: str, folder: str, place: str, nth: str) -> None:
    kill_at(place, int(nth))
    repair(orders_url, stock_url, listed_rows(Path(folder), list(Verdict)), batch=BATCH)


if __name__ == "__main__":
    main(*sys.argv[1:])
