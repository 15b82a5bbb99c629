"""Tests that half messages behave alike in memory, on SQLite and on PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import LocalOutcome
from shieldtx.ports.half_messages import CheckResult, DueCheck, NewHalfMessage
from tests.verification.simulation.database import EPOCH
from tests.verification.simulation.differential import BothStores
from tests.verification.simulation.half_messages import MemoryBarrier, MemoryHalfMessageStore
from tests.verification.simulation.mutants import MUTANTS, applied
from tests.verification.simulation.sql_stores import SqlStores

ALL = 400
CALLS = 70
SEQUENCES = 30
OF_HALF_MESSAGES = [
    n for n, m in MUTANTS.items() if m.of in {MemoryHalfMessageStore, MemoryBarrier}
]


def test_memory_and_a_database_do_the_same_with_half_messages(sql: SqlStores) -> None:
    _make_all(sql)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_HALF_MESSAGES)
@pytest.mark.parametrize("sql", ["sqlite"], indirect=True)
def test_half_messages_in_memory_with_a_defect_do_something_else(sql: SqlStores, name: str) -> None:
    with applied(name), pytest.raises(AssertionError):
        _make_all(sql)


def _make_all(sql: SqlStores) -> None:
    for seed in range(SEQUENCES):
        Calls(BothStores(sql), random.Random(seed)).make(CALLS)


class Calls:
    """Calls of the store and of the barrier, drawn from a seed."""

    def __init__(self, pair: BothStores, draw: random.Random) -> None:
        self.pair = pair
        self.draw = draw
        self.ids: list[UUID] = []
        self.due: list[tuple[dict[int, UUID], DueCheck]] = []

    def make(self, calls: int) -> None:
        weights: dict[Callable[[], None], int] = {
            self.pass_time: 8,
            self.prepare: 4,
            self.resolve: 2,
            self.claim_checks: 6,
            self.answer: 8,
            self.release: 1,
            self.park: 3,
            self.run_local: 4,
            self.outcome_of: 4,
        }
        self.prepare()
        for call in self.draw.choices(list(weights), weights=list(weights.values()), k=calls):
            call()

    def pass_time(self) -> None:
        self.pair.clock.now += self.draw.choice([0.5, 1.0, 2.0, 2.0, 2.0, 4000.0])

    def prepare(self) -> None:
        event = Envelope(
            id=self.pair.new_id(),
            type=self.draw.choice("ttu"),
            source="A",
            topic="t",
            payload="1",
            time=EPOCH,
            key=self.draw.choice(["k", "l", None]),
        )
        delay = self.draw.choice([None, None, timedelta(seconds=3)])
        self.ids.append(event.id)
        self.pair.same(
            lambda side: side.half_messages.prepare([NewHalfMessage(envelope=event, delay=delay)])
        )

    def resolve(self) -> None:
        some = self.draw.sample(self.ids, k=min(2, len(self.ids)))
        outcome = self.known()
        self.pair.same(lambda side: side.half_messages.resolve(some, outcome))

    def claim_checks(self) -> None:
        limit = self.draw.choice([1, 2, ALL])
        mine, theirs = self.pair.both(
            lambda side: side.half_messages.claim_checks("t", limit=limit)
        )
        assert mine.checks == theirs.checks
        assert mine.more == theirs.more
        tokens = {id(self.pair.memory): mine.token, id(self.pair.sql): theirs.token}
        self.due += [(tokens, check) for check in mine.checks]

    def answer(self) -> None:
        outcome = self.draw.choice([LocalOutcome.UNKNOWN, LocalOutcome.UNKNOWN, self.known()])
        for tokens, check in self.some():
            said = [CheckResult(check, outcome, "who knows")]
            self.pair.same(
                lambda side, tokens=tokens, said=said: set(
                    side.half_messages.answer(tokens[id(side)], said)
                )
            )

    def release(self) -> None:
        for tokens, check in self.some():
            self.pair.same(
                lambda side, tokens=tokens, check=check: side.half_messages.release(
                    tokens[id(side)], [check]
                )
            )

    def park(self) -> None:
        mine, theirs = self.pair.both(lambda side: side.half_messages.park(limit=ALL))
        assert {e.id for e in mine} == {e.id for e in theirs}

    def run_local(self) -> None:
        event_id, commits = self.draw.choice(self.ids), self.draw.random() < 0.7
        self.pair.same(lambda side: side.run_local(event_id, commits=commits))

    def outcome_of(self) -> None:
        event_id = self.draw.choice(self.ids)
        self.pair.same(lambda side: side.barrier.outcome_of(event_id))

    def some(self) -> list[tuple[dict[int, UUID], DueCheck]]:
        """Choose a check, most often a recent one; sometimes it has already been made."""
        return [self.draw.choice(self.due[-4:])] if self.due else []

    def known(self) -> LocalOutcome:
        return self.draw.choice([LocalOutcome.COMMIT, LocalOutcome.ROLLBACK])
