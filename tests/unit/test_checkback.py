"""Check-back by itself: what a pass asks, for how long, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shieldtx import LocalOutcome, new_event_id
from shieldtx.checkback import CheckBack, CheckPass, Parking
from shieldtx.events import Envelope
from shieldtx.ports.half import CheckPlan, DueCheck

COMMIT, ROLLBACK, UNKNOWN = LocalOutcome.COMMIT, LocalOutcome.ROLLBACK, LocalOutcome.UNKNOWN
SECOND = timedelta(seconds=1)


def envelope() -> Envelope:
    return Envelope(
        id=new_event_id(),
        type="orders.placed",
        source="orders",
        topic="orders.placed",
        payload="{}",
        time=datetime.now(UTC),
    )


@dataclass
class FakeStore:
    """The due checks, in memory."""

    due: list[DueCheck]
    gone: set[Any] = field(default_factory=set)
    started: list[DueCheck] = field(default_factory=list)
    answers: list[tuple[DueCheck, LocalOutcome, str]] = field(default_factory=list)
    back: list[DueCheck] = field(default_factory=list)
    old: list[Envelope] = field(default_factory=list)

    def claim_checks(self, event_type: str, *, limit: int) -> Sequence[DueCheck]:
        assert event_type == "orders.placed"
        claimed, self.due = self.due[:limit], self.due[limit:]
        return claimed

    def start(self, check: DueCheck) -> bool:
        self.started.append(check)
        return check.envelope.id not in self.gone

    def answer(self, check: DueCheck, outcome: LocalOutcome, *, reason: str) -> bool:
        self.answers.append((check, outcome, reason))
        return True

    def give_back(self, checks: Sequence[DueCheck]) -> None:
        self.back += checks

    def park(self, *, limit: int) -> Sequence[Envelope]:
        parked, self.old = self.old[:limit], self.old[limit:]
        return parked


def store_of(count: int) -> FakeStore:
    return FakeStore([DueCheck(envelope(), 1) for _ in range(count)])


def check_back(store: FakeStore, checker: Any, **options: Any) -> CheckBack:
    settings: dict[str, Any] = {"timeout": 10 * SECOND, "budget": 20 * SECOND} | options
    return CheckBack(event_type="orders.placed", store=store, checker=checker, **settings)  # type: ignore[arg-type]


def test_a_pass_counts_what_it_heard():
    store = store_of(4)
    told = iter([COMMIT, ROLLBACK, UNKNOWN, COMMIT])
    hints: list[int] = []
    back = check_back(store, lambda _: next(told), after_commit=lambda: hints.append(1))
    assert back.run_once() == CheckPass(checked=4, committed=2, rolled_back=1, unknown=1)
    assert [outcome for _, outcome, _ in store.answers] == [COMMIT, ROLLBACK, UNKNOWN, COMMIT]
    assert hints == [1]


def test_a_full_batch_is_followed_by_the_next():
    store = store_of(5)
    back = check_back(store, lambda _: ROLLBACK, batch_size=2)
    assert [back.run_once().more for _ in range(3)] == [True, True, False]
    assert len(store.answers) == 5


def test_what_is_not_half_any_more_is_not_asked_about():
    store = store_of(2)
    store.gone = {store.due[0].envelope.id}
    asked: list[Envelope] = []

    def checker(half: Envelope) -> LocalOutcome:
        asked.append(half)
        return COMMIT

    done = check_back(store, checker).run_once()
    assert (done.checked, done.committed, done.late) == (2, 1, 1)
    assert len(asked) == 1


def test_what_a_pass_has_no_time_for_is_given_back():
    store = store_of(5)
    first = list(store.due)
    now = [0.0]

    def slow(_: Envelope) -> LocalOutcome:
        now[0] += 8.0
        return COMMIT

    done = check_back(store, slow, clock=lambda: now[0]).run_once()
    assert done.checked == 3
    assert store.back == first[3:]
    assert store.started == first[:3]


def test_an_error_says_no_more_than_nothing():
    store = store_of(1)
    back = check_back(store, lambda _: 1 / 0)
    assert back.run_once().unknown == 1
    [(_, outcome, reason)] = store.answers
    assert (outcome, reason) == (UNKNOWN, "ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("plan", "seconds"),
    [
        (CheckPlan(most=3), [30, 30, 30]),
        (CheckPlan(most=4, growth=2.0, longest=100 * SECOND), [30, 60, 100, 100]),
        (CheckPlan(most=2, interval=60 * SECOND, longest=SECOND), [60, 60]),
    ],
)
def test_the_pauses_between_checks_follow_the_plan(plan: CheckPlan, seconds: list[int]):
    assert [pause.total_seconds() for pause in plan.pauses()] == seconds


def test_parking_raises_the_alarm_for_each(caplog):
    store = store_of(0)
    store.old = [envelope() for _ in range(3)]
    ids = [str(each.id) for each in store.old]
    parking = Parking(store=store, batch_size=2)  # type: ignore[arg-type]
    assert [(p.parked, p.more) for p in (parking.run_once(), parking.run_once())] == [
        (2, True),
        (1, False),
    ]
    alarms = [r.message for r in caplog.records if r.levelname == "ERROR"]
    assert all(known in alarm for known, alarm in zip(ids, alarms, strict=True))
