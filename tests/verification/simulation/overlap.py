"""The same calls in memory and on PostgreSQL, with concurrently open transactions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from shieldtx.domain.events import Envelope
from tests.verification.simulation.database import EPOCH
from tests.verification.simulation.differential import BothStores
from tests.verification.simulation.open_calls import (
    OpenCall,
    ServerSide,
    Side,
    Stage,
    WaitingDatabase,
)
from tests.verification.simulation.sql_stores import SqlStores

MOST_OPEN = 3

Call = Callable[[Any, OpenCall], Any]
"""A call of the stores of a side, which may stay open in the middle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BothCalls:
    """One call on both sides."""

    name: str
    mine: OpenCall
    theirs: OpenCall
    seen: Callable[[Any], Any]
    """Returns the part of an answer that has to be the same."""
    keep: Callable[[Any, Any], None]
    """Processes the two answers."""


class Overlap:
    """Two sides that do the same and are compared after each step."""

    def __init__(self, sql: SqlStores, monitor: Connection) -> None:
        self.pair = BothStores(sql, WaitingDatabase)
        self.memory = Side(self.pair.memory)
        self.server = ServerSide(sql, monitor)
        self.calls: list[BothCalls] = []
        """Calls that have not ended."""
        self.waited = 0
        """How many calls have waited."""
        self.trace: list[str] = []

    def begin(
        self,
        name: str,
        call: Call,
        *,
        stays: bool = False,
        fails: bool = False,
        seen: Callable[[Any], Any] = lambda answer: answer,
        keep: Callable[[Any, Any], None] = lambda mine, theirs: None,
    ) -> None:
        """Make a call on both sides, until it waits, is open, or has ended."""
        self.trace.append(f"{name}{', stays open' * stays}")
        mine = self.memory.begin(call, stays=stays, fails=fails)
        theirs = self.server.begin(call, stays=stays, fails=fails)
        both = BothCalls(name=name, mine=mine, theirs=theirs, seen=seen, keep=keep)
        self.calls.append(both)
        self._compare()
        self.waited += mine.stage is Stage.WAITS

    def end(self, both: BothCalls, *, fails: bool) -> None:
        """Let an open call end on both sides."""
        self.trace.append(f"end of {both.name}{', by an error' * fails}")
        self.memory.end(both.mine, fails=fails)
        self.server.end(both.theirs, fails=fails)
        self._compare()

    def pass_time(self, seconds: float) -> None:
        self.trace.append(f"+{seconds} s")
        self.pair.clock.now += seconds
        self.pair.sql.keep_time()

    def open_calls(self) -> list[BothCalls]:
        return [both for both in self.calls if both.mine.stage is Stage.IS_OPEN]

    def has_waiting(self) -> bool:
        return any(both.mine.stage is Stage.WAITS for both in self.calls)

    def close(self) -> None:
        """Leave no transaction open."""
        self.memory.close()
        self.server.close()

    def _compare(self) -> None:
        going_on = []
        for both in self.calls:
            mine, theirs = both.mine, both.theirs
            assert mine.stage is theirs.stage, self._found(both.name, mine.stage, theirs.stage)
            if mine.stage is not Stage.HAS_ENDED:
                self.trace.append(f"    {both.name} {mine.stage.value}")
                going_on.append(both)
                continue
            answers = [
                answer if isinstance(answer, str) else both.seen(answer)
                for answer in (mine.answer, theirs.answer)
            ]
            self.trace.append(f"    {both.name}: {answers[0]}")
            assert answers[0] == answers[1], self._found(both.name, *answers)
            if not isinstance(mine.answer, str):
                both.keep(mine.answer, theirs.answer)
        self.calls = going_on
        mine_rows, rows = self.pair.memory.content(), self.pair.sql.content()
        for name in rows:
            assert mine_rows[name] == rows[name], self._found(name, mine_rows[name], rows[name])

    def _found(self, what: str, mine: Any, theirs: Any) -> str:
        """Describe a difference, and how it came about."""
        return "\n".join([*self.trace, f"{what}: in memory {mine}", f"on PostgreSQL {theirs}"])


class Drawn:
    """The random choices for a schedule: events, times, and the calls that stay open."""

    def __init__(self, overlap: Overlap, draw: random.Random) -> None:
        self.overlap = overlap
        self.draw = draw
        self.events: list[Envelope] = []

    def new_event(self) -> Envelope:
        event = Envelope(
            id=self.overlap.pair.new_id(),
            type="t",
            source="A",
            topic="t",
            payload="1",
            time=EPOCH,
            key=self.draw.choice(["k", "k", "l", None]),
            biz_key=self.draw.choice([None, None, "m", "n"]),
        )
        self.events.append(event)
        return event

    def seconds(self) -> float:
        return self.draw.choice([0.5, 2.0, 6.0])

    def stays(self) -> bool:
        few = len(self.overlap.open_calls()) < MOST_OPEN
        return few and self.draw.random() < 0.8

    def fails(self) -> bool:
        return self.draw.random() < 0.1

    def recent(self, pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        """Draw a recent pair and make it the latest, so that open ones are used again."""
        drawn = self.draw.choice(pairs[-3:])
        pairs.remove(drawn)
        pairs.append(drawn)
        return drawn

    def of_side(self, mine: Any, theirs: Any) -> Callable[[Any], Any]:
        return lambda side: mine if side is self.overlap.pair.memory else theirs


def number_of(event_id: UUID) -> int:
    """Return the part of an event's id by which a trace names it."""
    return event_id.int & 0xFFFF


def name_of(event: Envelope) -> str:
    """Return the name of an event in a trace."""
    cause = "" if event.causation_id is None else f" undoes {number_of(event.causation_id)}"
    return f"{number_of(event.id)}{event.source}:{event.key}{cause}"
