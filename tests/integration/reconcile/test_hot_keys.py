"""A repair of many events of few keys does not read the rows that it has written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from shieldtx import Event
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.repair.decisions import AFTER_LATER_ONES, OVERTAKEN, Policy
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.repair import SqlRepairStore
from tests.support.repair_scenarios import BOTH, Pair, before_statements, listed
from tests.support.service import Service, drain_and_close

NUMBER = 24
MISSING, PARKED, ABSENT = (
    Verdict.MISSING_DOWNSTREAM,
    Verdict.PARKED,
    Verdict.ABSENT_FROM_TOPIC,
)
HANDED_OVER = (MISSING, RepairAction.HAND_OVER)
REPLAYED = (PARKED, RepairAction.REPLAY_EVENT)
PUBLISHED = (ABSENT, RepairAction.PUBLISH_AGAIN)
PLAIN = Policy(services=BOTH, named=frozenset({PARKED, ABSENT}))
SMALL = {"batch": 2, "looked_up": 8, "compared": NUMBER}


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    """Two services with many events of one key."""
    pair = Pair(make_service)
    for _ in range(NUMBER):
        write(pair)
    return pair


def write(pair: Pair) -> None:
    with pair.orders.transaction() as session:
        pair.orders.app.outbox.add(session, Event(type="orders.placed", key="k"))


def write_and_receive(pair: Pair) -> None:
    write(pair)
    drain_and_close(pair.orders.relay(), pair.stock.app.build_consumer("stock"))


def failed(pair: Pair) -> list[ListedRow]:
    """Fail the events as if attempts had no answer and the last was refused: nothing was undone."""
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', settled_at = now(), last_error = 'refused', "
        "unconfirmed = true"
    )
    return [listed(PARKED, sent=sent) for sent in pair.sent()]


@contextmanager
def counting_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the rows of arrivals and siblings that databases return."""
    number = Counter[str]()

    def counted(name: str) -> Callable[..., Iterator[Any]]:
        read = getattr(SqlRepairStore, name)

        def method(*given: Any, **named: Any) -> Iterator[Any]:
            for row in read(*given, **named):
                number[name] += 1
                yield row

        return method

    with monkeypatch.context() as patched:
        for name in ("received_after", "siblings"):
            patched.setattr(SqlRepairStore, name, counted(name))
        yield number


def after_batch(number: int, act: Callable[[], None]) -> Callable[[str], None]:
    """Act once, after the given number of batches is stored, and before the audit of the last."""
    batches: list[str] = []

    def look(statement: str) -> None:
        if statement.startswith("INSERT INTO shield_audit"):
            batches.append(statement)
            if len(batches) == number:
                act()

    return look


@pytest.mark.parametrize("out_of_order", [True, False])
def test_handed_over_events_are_not_read_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, out_of_order: bool
):
    pair.work()
    pair.lose_inbox_rows("stock")

    with counting_rows(monkeypatch) as rows:
        policy = replace(PLAIN, out_of_order=out_of_order)
        report = pair.repair(pair.missing("stock"), policy=policy, **SMALL)

    assert report.repaired == {HANDED_OVER: Repaired(done=NUMBER)}
    assert rows == {"siblings": NUMBER}


@pytest.mark.parametrize("out_of_order", [True, False])
def test_a_later_event_is_seen_after_many_batches_of_its_key(pair: Pair, out_of_order: bool):
    pair.work()
    pair.lose_inbox_rows("stock")
    policy = replace(PLAIN, out_of_order=out_of_order)

    with before_statements(after_batch(5, lambda: write_and_receive(pair))):
        report = pair.repair(pair.missing("stock"), policy=policy, **SMALL)

    if out_of_order:
        late = NUMBER - 10
        assert report.repaired == {HANDED_OVER: Repaired(done=NUMBER, out_of_order=late)}
    else:
        assert report.repaired == {HANDED_OVER: Repaired(done=10)}
        assert report.refused == {(MISSING, OVERTAKEN): NUMBER - 10}


def test_initially_overtaken_events_are_read_once(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    write_and_receive(pair)

    with counting_rows(monkeypatch) as rows:
        policy = replace(PLAIN, out_of_order=True)
        report = pair.repair(missing, policy=policy, **SMALL)

    assert report.repaired == {HANDED_OVER: Repaired(done=NUMBER, out_of_order=NUMBER)}
    assert rows["received_after"] == 1


@pytest.mark.parametrize("out_of_order", [True, False])
def test_replayed_events_are_not_read_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, out_of_order: bool
):
    with counting_rows(monkeypatch) as rows:
        policy = replace(PLAIN, out_of_order=out_of_order)
        report = pair.repair(failed(pair), policy=policy, **SMALL)

    assert report.repaired == {REPLAYED: Repaired(done=NUMBER)}
    assert rows == {}


@pytest.mark.parametrize("out_of_order", [True, False])
def test_a_later_event_is_seen_after_many_replays_of_its_key(pair: Pair, out_of_order: bool):
    found = failed(pair)
    policy = replace(PLAIN, out_of_order=out_of_order)

    with before_statements(after_batch(5, lambda: write(pair))):
        report = pair.repair(found, policy=policy, **SMALL)

    if out_of_order:
        late = NUMBER - 10
        assert report.repaired == {REPLAYED: Repaired(done=NUMBER, out_of_order=late)}
    else:
        assert report.repaired == {REPLAYED: Repaired(done=10)}
        assert report.refused == {(PARKED, AFTER_LATER_ONES): NUMBER - 10}


def test_events_published_again_are_not_read_before_each_batch(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
):
    pair.work()
    pair.lose_inbox_rows("stock")

    groups = {"stock": [ExpectedGroup(name="stock", topics=("orders.placed",))]}
    policy = replace(PLAIN, out_of_order=True, groups=groups)

    with counting_rows(monkeypatch) as rows:
        report = pair.repair(pair.absent(), policy=policy, **SMALL)

    assert report.repaired == {PUBLISHED: Repaired(done=NUMBER, out_of_order=NUMBER)}
    assert rows == {"siblings": NUMBER}
