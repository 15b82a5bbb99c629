"""Check-back by itself: the checks of a pass, their time limits, and the checks left to others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import UUID, uuid4

import pytest

from shieldtx import LocalOutcome, new_event_id
from shieldtx.domain.events import Envelope
from shieldtx.half_messages.check_back import CheckBack, CheckBackResult, Parking
from shieldtx.ports.half_messages import CheckClaim, CheckResult, CheckSchedule, DueCheck
from tests.conftest import Eventually
from tests.support.log_records import logged

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
    answers: list[CheckResult] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    """The number of answers in each write."""
    back: list[DueCheck] = field(default_factory=list)
    old: list[Envelope] = field(default_factory=list)
    token: UUID = field(default_factory=uuid4)
    is_away: bool = False

    def claim_checks(self, event_type: str, *, limit: int) -> CheckClaim:
        assert event_type == "orders.placed"
        claimed, self.due = self.due[:limit], self.due[limit:]
        return CheckClaim(token=self.token, checks=claimed, more=len(claimed) == limit)

    def answer(self, token: UUID, answers: Sequence[CheckResult]) -> set[UUID]:
        assert token == self.token
        if self.is_away:
            raise ConnectionError
        self.answers += answers
        self.written.append(len(answers))
        return {a.check.envelope.id for a in answers} - self.gone

    def release(self, token: UUID, checks: Sequence[DueCheck]) -> None:
        assert token == self.token
        self.back += checks

    def park(self, *, limit: int) -> Sequence[Envelope]:
        parked, self.old = self.old[:limit], self.old[limit:]
        return parked


def store_of(count: int) -> FakeStore:
    return FakeStore([DueCheck(envelope(), 1) for _ in range(count)])


def check_back(store: FakeStore, checker: Any, **options: Any) -> CheckBack:
    settings: dict[str, Any] = {"timeout": 10 * SECOND, "budget": 20 * SECOND} | options
    return CheckBack(event_type="orders.placed", store=store, checker=checker, **settings)  # type: ignore[arg-type]


def test_pass_counts_the_outcomes():
    store = store_of(4)
    outcomes = iter([COMMIT, ROLLBACK, UNKNOWN, COMMIT])
    hints: list[int] = []
    back = check_back(store, lambda _: next(outcomes), after_commit=lambda: hints.append(1))
    assert back.run_once() == CheckBackResult(checked=4, committed=2, rolled_back=1, unknown=1)
    assert [outcome for _, outcome, _ in store.answers] == [COMMIT, ROLLBACK, UNKNOWN, COMMIT]
    assert hints == [1]


@pytest.mark.parametrize(
    "answer", [("1", "DE8937"), "DE8937", {"DE8937": 1}, None, ValueError("DE8937")]
)
def test_invalid_answer_is_reported_by_its_type_only(answer, caplog):
    store = store_of(1)
    assert check_back(store, lambda _: answer).run_once().unknown == 1
    reason = store.answers[0].reason
    assert f"a value of type {type(answer).__name__}, not a LocalOutcome: COMMIT, " in reason
    [unknown] = logged(caplog.records, "check_inconclusive")
    assert unknown["reason"] == reason
    assert "DE8937" not in reason + caplog.text


def test_full_batch_is_followed_by_the_next():
    store = store_of(5)
    back = check_back(store, lambda _: ROLLBACK, batch_size=2)
    assert [back.run_once().more for _ in range(3)] == [True, True, False]
    assert len(store.answers) == 5


def test_answer_for_a_decided_message_counts_as_late():
    store = store_of(2)
    store.gone = {store.due[0].envelope.id}
    hints: list[int] = []
    back = check_back(store, lambda _: COMMIT, after_commit=lambda: hints.append(1))
    done = back.run_once()
    assert (done.checked, done.committed, done.late) == (2, 1, 1)
    store.due = [DueCheck(envelope(), 1)]
    store.gone = {store.due[0].envelope.id}
    assert back.run_once().late == 1
    assert hints == [1], "nothing was committed by the second pass"


def test_answers_of_a_batch_are_written_together():
    store = store_of(5)
    check_back(store, lambda _: COMMIT).run_once()
    assert store.written == [5]


def test_checks_beyond_the_time_of_a_pass_are_released():
    store = store_of(5)
    first = list(store.due)
    now = [0.0]

    def slow(_: Envelope) -> LocalOutcome:
        now[0] += 8.0
        return COMMIT

    done = check_back(store, slow, clock=lambda: now[0]).run_once()
    assert done.checked == 3
    assert store.back == first[3:]
    assert [a.check for a in store.answers] == first[:3]


class Gate:
    """A checker that hangs for some messages until it is opened, and answers for the others."""

    def __init__(self, *hanging: DueCheck) -> None:
        self.reached = threading.Semaphore(0)
        self._hanging = {check.envelope.id for check in hanging}
        self._open = threading.Event()

    def __call__(self, half: Envelope) -> LocalOutcome:
        if half.id in self._hanging:
            self.reached.release()
            assert self._open.wait(30)
        return COMMIT

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.set()


@pytest.mark.parametrize("threads", [1, 3])
def test_answer_is_written_without_a_slow_one_of_its_batch(threads: int, eventually: Eventually):
    store = store_of(4)
    with Gate(store.due[3]) as gate, ThreadPoolExecutor(1) as pool:
        passing = pool.submit(check_back(store, gate, threads=threads).run_once)
        assert gate.reached.acquire(timeout=30)
        eventually(lambda: len(store.answers) == 3, "the others are written down")
        assert not passing.done()
        gate.__exit__()
        assert passing.result(30).committed == 4


def test_hanging_thread_leaves_the_rest_to_the_others():
    store = store_of(9)
    slow = store.due[0]
    with Gate(slow) as gate:
        back = check_back(store, gate, threads=2, timeout=SECOND / 5)
        done = back.run_once()
        assert (done.checked, done.committed, done.unknown) == (9, 8, 1)
        [late] = [a for a in store.answers if a.check is slow]
        assert late.reason == "no answer within 0.2 s"
        store.due = store_of(1).due
        assert back.run_once().committed == 1, "there is one thread left"


def test_no_check_is_made_while_all_threads_hang(eventually: Eventually):
    store = store_of(3)
    with Gate(*store.due[:2]) as gate:
        back = check_back(store, gate, threads=2, timeout=SECOND / 5)
        assert back.run_once().unknown == 2
        assert len(store.back) == 1
        store.due = store_of(1).due
        assert back.run_once() == CheckBackResult()
    eventually(lambda: back.run_once().committed == 1, "they have come back")


def test_no_further_check_is_made_when_answers_are_not_written():
    store = store_of(3)
    store.is_away = True
    asked: list[Envelope] = []
    with Gate(store.due[1]) as gate, ThreadPoolExecutor(1) as pool:

        def checker(half: Envelope) -> LocalOutcome:
            asked.append(half)
            return gate(half)

        passing = pool.submit(check_back(store, checker).run_once)
        with pytest.raises(ConnectionError):
            passing.result(30)
    assert len(asked) == 2


def test_error_of_a_checker_counts_as_unknown():
    store = store_of(1)
    back = check_back(store, lambda _: 1 / 0)
    assert back.run_once().unknown == 1
    [(_, outcome, reason)] = store.answers
    assert (outcome, reason) == (UNKNOWN, "ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("plan", "seconds"),
    [
        (CheckSchedule(most=3), [30, 30, 30]),
        (CheckSchedule(most=4, growth=2.0, longest=100 * SECOND), [30, 60, 100, 100]),
        (CheckSchedule(most=2, interval=60 * SECOND, longest=SECOND), [60, 60]),
    ],
)
def test_pauses_between_checks_follow_the_schedule(plan: CheckSchedule, seconds: list[int]):
    assert [pause.total_seconds() for pause in plan.pauses()] == seconds


def test_each_parked_message_logs_an_error(own_log):
    store = store_of(0)
    store.old = [envelope() for _ in range(3)]
    ids = [str(each.id) for each in store.old]
    parking = Parking(store=store, batch_size=2)  # type: ignore[arg-type]
    assert [(p.parked, p.more) for p in (parking.run_once(), parking.run_once())] == [
        (2, True),
        (1, False),
    ]
    alarms = logged(own_log.records, "half_message_unresolved")
    assert [alarm["event_id"] for alarm in alarms] == ids
