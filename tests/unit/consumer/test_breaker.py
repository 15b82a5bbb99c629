"""The breaker on pauses in memory: which failures pause a handler, and how its probes follow."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import errors
from sqlalchemy.exc import OperationalError

from shieldtx.consumer.blocked_attempts import divided
from shieldtx.consumer.breaker import LONGEST_WAIT, READ_EVERY, Breaker
from shieldtx.consumer.failure_runs import CALM, defect_of
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind
from shieldtx.ports.inbox import Attempt
from shieldtx.ports.pauses import HandlerKey
from tests.support.log_records import logged
from tests.verification.simulation.database import Clock, Database, Shard
from tests.verification.simulation.pauses import MemoryPauseStore

HANDLER: HandlerKey = ("orders.placed", TxKind.COMMIT)
SITE = "shop/orders.py:12 in reserve"
MINUTE = timedelta(minutes=1)


class Worker:
    """A worker with a breaker, on a table that it may share with others."""

    def __init__(self, clock: Clock, store: MemoryPauseStore, *, length: int = 3) -> None:
        self.store = store
        self.breaker = Breaker(
            group="stock",
            pauses=store,
            length=length,
            first_probe=timedelta(seconds=5),
            clock=lambda: clock.now,
        )

    def fail(
        self, attempt: Attempt | None = None, error: Exception | None = None, site: str = SITE
    ) -> bool:
        failed = attempt or attempt_of()
        error = error or TypeError("price")
        return self.breaker.takes_back(failed, error, raise_site=site, reason=repr(error))

    def claim(self) -> list[int]:
        claims = list(self.breaker.claim_probes([(HANDLER, MINUTE)]))
        return [claim.number for claim in claims]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Callable[..., Worker]:
    """Make workers that share one table."""
    database = Database(clock=clock, shards=[Shard(0)])

    def worker(length: int = 3) -> Worker:
        return Worker(clock, MemoryPauseStore(database, by=str(uuid4())), length=length)

    return worker


def attempt_of(
    key: str | None = None, kind: TxKind = TxKind.COMMIT, type_: str = "orders.placed"
) -> Attempt:
    envelope = Envelope(
        id=uuid4(),
        source="shop",
        type=type_,
        topic="orders",
        kind=kind,
        key=key,
        payload="{}",
        time=datetime.now(UTC),
    )
    return Attempt(envelope, "stock", 1, uuid4())


def test_failure_that_completes_a_run_pauses_uncounted(make) -> None:
    worker = make()
    assert [worker.fail() for _ in range(4)] == [False, False, True, True]
    assert worker.breaker.is_paused(HANDLER)
    assert not worker.breaker.is_paused(("orders.placed", TxKind.ROLLBACK))
    assert not worker.breaker.is_paused(("orders.paid", TxKind.COMMIT))


def test_failures_of_one_event_are_no_run(make) -> None:
    worker, attempt = make(), attempt_of()
    assert not any(worker.fail(attempt) for _ in range(20))


def test_a_success_ends_the_run(make) -> None:
    worker = make()
    for _ in range(5):
        assert not worker.fail()
        assert not worker.fail()
        worker.breaker.succeeded([attempt_of()])


def test_success_of_another_type_ends_no_run(make) -> None:
    worker = make()
    worker.fail()
    worker.fail()
    worker.breaker.succeeded([attempt_of(type_="orders.paid"), attempt_of(kind=TxKind.ROLLBACK)])
    assert worker.fail()


def test_a_refusal_ends_no_run(make) -> None:
    worker = make()
    worker.fail()
    worker.fail()
    worker.breaker.declared(attempt_of())
    assert worker.fail()


@pytest.mark.parametrize(
    "other", [{"error": KeyError("price")}, {"site": "shop/orders.py:13 in reserve"}]
)
def test_another_class_or_line_begins_a_new_run(make, other) -> None:
    worker = make()
    worker.fail()
    worker.fail()
    assert not worker.fail(**other)
    assert not worker.fail(**other)
    assert worker.fail(**other)


def database_error(orig: Exception, *, is_lost: bool = False) -> OperationalError:
    return OperationalError("UPDATE", {}, orig, connection_invalidated=is_lost)


def locked_in_sqlite() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY"
    return error


@pytest.mark.parametrize(
    "error",
    [
        database_error(errors.DeadlockDetected()),
        database_error(errors.SerializationFailure()),
        database_error(errors.LockNotAvailable()),
        database_error(errors.AdminShutdown()),
        database_error(errors.OperationalError("server closed the connection"), is_lost=True),
        database_error(locked_in_sqlite()),
    ],
    ids=lambda error: type(error.orig).__name__,
)
def test_conflicts_and_lost_connections_are_no_defect(make, error: Exception) -> None:
    worker = make()
    assert not any(worker.fail(error=error) for _ in range(20))


@pytest.mark.parametrize(
    "error",
    [
        database_error(errors.OperationalError("connection refused")),
        database_error(errors.QueryCanceled("statement timeout")),
        database_error(errors.DiskFull()),
        database_error(sqlite3.OperationalError("no such table: price")),
    ],
    ids=lambda error: type(error.orig).__name__,
)
def test_lasting_errors_of_a_database_pause_the_handler(make, error: Exception) -> None:
    """Another database is away, or the new release's statement takes too long."""
    worker = make()
    assert [worker.fail(error=error) for _ in range(3)] == [False, False, True]


def test_length_zero_and_no_table_pause_nothing(make) -> None:
    off = make(length=0)
    assert not any(off.fail() for _ in range(20))
    alone = Breaker(group="stock", length=1)
    assert not alone.takes_back(attempt_of(), TypeError(), raise_site=SITE, reason="")


def test_length_zero_obeys_the_pauses_of_others(make) -> None:
    off, on = make(length=0), make(length=1)
    assert on.fail()
    assert off.fail()


def test_errors_of_a_group_are_one_defect_where_they_are_equal() -> None:
    alike = ExceptionGroup("two", [TypeError(1), TypeError(2)])
    assert defect_of(alike, SITE) == defect_of(TypeError(3), SITE)
    mixed = ExceptionGroup("two", [TypeError(1), KeyError(2)])
    assert defect_of(mixed, SITE) == ("builtins.ExceptionGroup", SITE)


def test_other_workers_learn_of_a_pause_within_a_second(make, clock: Clock) -> None:
    worker, other = make(length=1), make()
    assert not other.breaker.has_pauses
    worker.fail()
    assert not other.breaker.has_pauses
    clock.now += READ_EVERY
    assert other.breaker.has_pauses


def test_failure_during_a_pause_of_another_worker_does_not_count(make) -> None:
    worker, other = make(length=1), make()
    assert not other.breaker.has_pauses
    worker.fail()
    assert other.fail()


def test_one_of_two_workers_gets_the_due_probe(make, clock: Clock) -> None:
    worker, other = make(length=1), make()
    worker.fail()
    clock.now += 1
    assert worker.claim() == other.claim() == []
    clock.now += 5
    assert [*other.claim(), *worker.claim()] == [1]
    # Its process is killed.
    clock.now += 64
    assert worker.claim() == []
    clock.now += 2
    assert worker.claim() == [2]


def test_wait_grows_with_each_probe_that_dies(make, clock: Clock) -> None:
    worker = make(length=1)
    worker.fail()
    clock.now += 5
    waits = []
    for _ in range(4):
        began = clock.now
        while not worker.claim():
            clock.now += 1
        waits.append(clock.now - began)
    assert waits == [0, 60 + 5, 60 + 10, 60 + 20]


def test_wait_doubles_with_each_failed_probe_up_to_the_longest(make, clock: Clock) -> None:
    worker = make(length=1)
    worker.fail()
    waits = []
    for _ in range(9):
        began = clock.now
        while not (claims := list(worker.breaker.claim_probes([(HANDLER, MINUTE)]))):
            clock.now += 1
        waits.append(clock.now - began)
        worker.breaker.keep_paused(claims[0], reason="KeyError")
    back = READ_EVERY
    later = [wait + back for wait in (10, 20, 40, 80, 160, 300, 300, 300)]
    assert waits == [5, *later]
    assert waits[-1] - back == LONGEST_WAIT.total_seconds()


def test_probe_that_did_not_reach_the_handler_comes_again_soon(make, clock: Clock) -> None:
    worker = make(length=1)
    worker.fail()
    for _ in range(9):
        clock.now += 5
        [claim] = worker.breaker.claim_probes([(HANDLER, MINUTE)])
        assert claim.number == 1
        worker.breaker.keep_paused(claim, reason=None)


def test_lost_claim_neither_ends_nor_delays_the_pause(make, clock: Clock) -> None:
    worker, other = make(length=1), make()
    worker.fail()
    clock.now += 5
    [late] = worker.breaker.claim_probes([(HANDLER, MINUTE)])
    clock.now += 66
    [claim] = other.breaker.claim_probes([(HANDLER, MINUTE)])
    worker.breaker.close(late)
    worker.breaker.keep_paused(late, reason="TypeError")
    assert worker.breaker.is_paused(HANDLER)
    other.breaker.close(claim)
    assert not other.breaker.is_paused(HANDLER)


def test_after_the_pause_a_new_run_is_needed(make, clock: Clock, caplog) -> None:
    caplog.set_level(logging.INFO)
    worker, other = make(), make()
    other.fail()
    other.fail()
    for _ in range(3):
        worker.fail()
    clock.now += 5
    [claim] = worker.breaker.claim_probes([(HANDLER, MINUTE)])
    assert other.breaker.has_pauses
    worker.breaker.close(claim)
    clock.now += READ_EVERY
    assert not other.breaker.has_pauses
    assert [other.fail() for _ in range(6)] == [*[False] * 5, True]
    assert len(logged(caplog.records, "handler_resumed")) == 2


def test_operators_pause_covers_every_type_and_has_no_probes(make, clock: Clock) -> None:
    worker = make()
    worker.store.pause("stock", reason="stocktaking")
    worker.store.pause("orders", reason="another group")
    clock.now += 3600
    assert worker.breaker.is_paused(("anything", TxKind.ROLLBACK))
    assert worker.breaker.running({HANDLER}) == set()
    assert worker.claim() == []
    assert worker.store.resume("stock") == 1
    clock.now += READ_EVERY
    assert worker.breaker.running({HANDLER}) == {HANDLER}


def test_the_breaker_changes_no_pause_of_an_operator(make, clock: Clock) -> None:
    worker = make(length=1)
    worker.fail()
    worker.store.pause("stock", "orders.placed", reason="a look")
    clock.now += 3600
    assert worker.claim() == []
    assert worker.store.resume("stock", "orders.placed") == 2


def test_alarm_is_an_error_once_and_a_warning_each_minute(make, clock: Clock, caplog) -> None:
    caplog.set_level(logging.INFO)
    worker = make(length=1)
    worker.fail()
    for _ in range(125):
        clock.now += 1
        assert worker.breaker.has_pauses
    [alarm] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert alarm.exc_info
    [fields] = logged(caplog.records, "handler_tripped")
    assert (fields["event_type"], fields["raise_site"]) == ("orders.placed", SITE)
    assert len(logged(caplog.records, "handler_paused")) == 2


def test_answers_of_a_probe_are_those_of_its_event_alone(make) -> None:
    worker, probed = make(length=1), attempt_of()
    with worker.breaker.probing(probed.envelope) as answer:
        worker.breaker.succeeded([attempt_of()])
        worker.fail()
        assert (answer.handler_works, answer.failure) == (False, None)
        worker.fail(probed)
        assert answer.failure == "TypeError('price')"
        worker.breaker.declared(probed)
        assert answer.handler_works


def ids(attempts) -> list[UUID]:
    return [attempt.envelope.id for attempt in attempts]


def test_attempt_of_a_paused_handler_blocks_its_key_in_the_batch(make) -> None:
    worker = make(length=1)
    worker.fail()
    paid = [attempt_of(key, type_="orders.paid") for key in ("a", "b", None)]
    placed = [attempt_of(key) for key in ("a", None)]
    blocked: set = set()
    batch = [paid[1], placed[0], paid[0], placed[1], paid[2]]
    free, waiting = divided(batch, blocked, worker.breaker)
    assert ids(free) == ids([paid[1], paid[2]])
    assert ids(waiting) == ids([placed[0], paid[0], placed[1]])
    assert blocked == {("orders", "a")}


def test_the_end_of_a_pause_ends_no_run_of_another_handler(make, clock: Clock) -> None:
    worker = make()
    worker.fail(attempt_of(type_="orders.paid"))
    worker.fail(attempt_of(type_="orders.paid"))
    for _ in range(3):
        worker.fail()
    clock.now += 5
    [claim] = worker.breaker.claim_probes([(HANDLER, MINUTE)])
    worker.breaker.close(claim)
    assert worker.fail(attempt_of(type_="orders.paid"))


class Unreliable:
    """A store of pauses whose next calls of some names fail."""

    def __init__(self, store: MemoryPauseStore, *names: str) -> None:
        self._store = store
        self.failing = list(names)

    def __getattr__(self, name: str) -> Any:
        if name in self.failing:
            self.failing.remove(name)
            raise ConnectionError(name)
        return getattr(self._store, name)


def test_after_a_failed_read_the_pauses_are_read_again(make, clock: Clock) -> None:
    make(length=1).fail()
    worker = Worker(clock, Unreliable(make().store, "pauses"))
    with pytest.raises(ConnectionError):
        worker.breaker.is_paused(HANDLER)
    assert worker.breaker.is_paused(HANDLER)


def test_lane_finds_its_pause_whatever_another_lane_has_read(make, clock: Clock) -> None:
    """The read of the other lane begins later, and ends first."""
    tripped, worker = make(length=1), make()
    paused_by_others = worker.store.pauses

    def slow(group: str) -> Any:
        found = paused_by_others(group)
        worker.store.pauses = lambda _: []
        clock.now += READ_EVERY
        assert not worker.breaker.is_paused(HANDLER)
        return found

    assert not worker.breaker.has_pauses
    tripped.fail()
    worker.store.pauses = slow
    assert worker.fail()


def test_failure_during_the_trip_of_another_lane_does_not_count(make) -> None:
    worker = make()
    read = worker.store.pauses
    lanes = [worker.fail, worker.fail, worker.fail]

    def slow(group: str) -> Any:
        """Read no pause, and let the other lanes fail before the result is known."""
        found = read(group)
        worker.store.pauses = read
        assert [fail() for fail in lanes] == [False, False, True]
        return found

    worker.store.pauses = slow
    assert worker.fail()


def test_error_of_the_database_in_a_probe_is_no_answer(make) -> None:
    worker, probed = make(length=1), attempt_of()
    worker.fail()
    lost = database_error(Exception("server closed the connection"), is_lost=True)
    with worker.breaker.probing(probed.envelope) as answer:
        assert worker.fail(probed, lost)
    assert (answer.handler_works, answer.failure) == (False, None)


@pytest.mark.parametrize("name", ["waiting", "pauses"])
def test_error_after_a_trip_keeps_the_alarm_and_the_attempt(
    make, clock: Clock, caplog, name: str
) -> None:
    sound = make().store
    unreliable = Unreliable(sound)
    worker = Worker(clock, unreliable)
    worker.fail()
    worker.fail()

    def trip_and_fail(*args: Any, **options: Any) -> bool:
        unreliable.failing.append(name)
        return sound.trip(*args, **options)

    worker.store.trip = trip_and_fail
    assert worker.fail()
    assert not unreliable.failing
    [fields] = logged(caplog.records, "handler_tripped")
    assert fields["waiting"] == (None if name == "waiting" else 0)


def test_required_run_doubles_with_each_pause_until_calm(make, clock: Clock) -> None:
    worker = make()

    def failures_until_the_pause() -> int:
        count = 1
        while not worker.fail():
            count += 1
        clock.now += 6
        [claim] = worker.breaker.claim_probes([(HANDLER, MINUTE)])
        worker.breaker.close(claim)
        return count

    assert [failures_until_the_pause() for _ in range(6)] == [3, 6, 12, 24, 48, 48]
    clock.now += CALM
    assert failures_until_the_pause() == 3


def test_end_of_an_operators_pause_requires_no_longer_run(make, clock: Clock) -> None:
    worker = make()
    worker.store.pause("stock", reason="stocktaking")
    assert worker.breaker.has_pauses
    worker.store.resume("stock")
    clock.now += READ_EVERY
    assert [worker.fail() for _ in range(3)] == [False, False, True]


def test_worker_whose_probe_failed_leaves_the_next_one_to_others(make, clock: Clock) -> None:
    worker, other = make(length=1), make()
    worker.fail()
    clock.now += 5
    [claim] = worker.breaker.claim_probes([(HANDLER, MINUTE)])
    worker.breaker.keep_paused(claim, reason="KeyError")
    clock.now += 11
    assert worker.claim() == []
    assert other.claim() == [2]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Callable[[], None]:
    """Return a function by which another worker applies an event, at the time of the call."""
    times: list[float] = []

    def has_succeeded(
        store: MemoryPauseStore, group: str, handler: HandlerKey, *, within: timedelta
    ) -> bool:
        assert (group, handler) == ("stock", HANDLER)
        return any(at > clock.now - within.total_seconds() for at in times)

    monkeypatch.setattr(MemoryPauseStore, "has_succeeded", has_succeeded)
    return lambda: times.append(clock.now)


def test_defect_of_one_worker_pauses_that_worker_alone(
    make, clock: Clock, elsewhere, caplog
) -> None:
    sick, healthy = make(), make()
    sick.fail()
    clock.now += 1
    elsewhere()
    assert [sick.fail() for _ in range(3)] == [False, True, True]
    clock.now += READ_EVERY
    assert sick.breaker.is_paused(HANDLER)
    assert not healthy.breaker.has_pauses
    [fields] = logged(caplog.records, "handler_fails_here_alone")
    assert (fields["event_type"], fields["raise_site"]) == ("orders.placed", SITE)
    assert not logged(caplog.records, "handler_tripped")


def test_success_elsewhere_before_the_run_is_of_no_account(make, clock: Clock, elsewhere) -> None:
    worker, other = make(), make()
    elsewhere()
    clock.now += 1
    assert [worker.fail() for _ in range(3)] == [False, False, True]
    clock.now += READ_EVERY
    assert other.breaker.is_paused(HANDLER)


def test_worker_on_trial_pauses_itself_longer_each_time(make, clock: Clock, elsewhere) -> None:
    worker = make(length=2)
    worker.fail()
    clock.now += 1
    elsewhere()
    assert worker.fail()
    for seconds in (5, 10, 20):
        clock.now += seconds - 0.1
        assert worker.breaker.is_paused(HANDLER)
        elsewhere()
        clock.now += 0.1
        assert not worker.breaker.is_paused(HANDLER)
        assert worker.fail()


def test_declared_error_on_trial_ends_the_trial(make, clock: Clock, elsewhere) -> None:
    worker = make(length=2)
    worker.fail()
    clock.now += 1
    elsewhere()
    assert worker.fail()
    clock.now += 5
    worker.breaker.declared(attempt_of())
    assert not worker.fail()


def test_success_on_trial_ends_the_trial(make, clock: Clock, elsewhere, caplog) -> None:
    caplog.set_level(logging.INFO)
    worker = make(length=2)
    worker.fail()
    clock.now += 1
    elsewhere()
    worker.fail()
    clock.now += 5
    worker.breaker.succeeded([attempt_of()])
    assert len(logged(caplog.records, "handler_resumed")) == 1
    assert not worker.fail()


def test_trial_that_fails_when_no_worker_succeeds_pauses_all(make, clock: Clock, elsewhere) -> None:
    worker, other = make(length=2), make()
    worker.fail()
    clock.now += 1
    elsewhere()
    worker.fail()
    clock.now += 5
    assert worker.fail()
    clock.now += READ_EVERY
    assert other.breaker.is_paused(HANDLER)
    clock.now += 5
    assert worker.claim() == [1]


def test_worker_that_has_paused_itself_makes_no_probes(make, clock: Clock, elsewhere) -> None:
    sick, other = make(length=2), make(length=1)
    sick.fail()
    clock.now += 1
    elsewhere()
    sick.fail()
    clock.now += 1
    other.fail()
    clock.now += 3.9
    assert sick.claim() == []
    clock.now += 1.1
    assert other.claim() == [1]


@pytest.mark.parametrize("name", ["has_succeeded", "trip"])
def test_failed_question_or_trip_keeps_the_run(make, clock: Clock, name: str) -> None:
    worker = Worker(clock, Unreliable(make().store, name), length=2)
    worker.fail()
    with pytest.raises(ConnectionError, match=name):
        worker.fail()
    assert worker.fail()
    assert worker.breaker.is_paused(HANDLER)


def test_worker_alone_makes_the_next_probe_itself(make, clock: Clock) -> None:
    worker = make(length=1)
    worker.fail()
    clock.now += 5
    [claim] = worker.breaker.claim_probes([(HANDLER, MINUTE)])
    worker.breaker.keep_paused(claim, reason="KeyError")
    clock.now += 11
    assert worker.claim() == []
    clock.now += READ_EVERY
    assert worker.claim() == [2]
