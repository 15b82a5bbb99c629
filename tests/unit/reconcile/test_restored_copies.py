"""Judgements of earlier runs about databases that were restored from earlier copies since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.ports.database_history import DatabaseHistory, Remains
from shieldtx.reconcile import judged_spans, restored_copies
from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.judged_spans import JudgedRun, JudgedUntil, judged_until, unjudged_spans
from shieldtx.reconcile.restored_copies import as_restored
from shieldtx.reconcile.window import Window

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
MARGIN = timedelta(hours=12)
BOTH = ("orders", "stock")
FORTH = Stream(kind=TxKind.COMMIT, upstream="orders", downstream="stock")
A_WEEK = Window(horizon=NOON - timedelta(days=7), watermark=NOON)
THERE = Remains(has_settlement=True)
UNKNOWN = Remains()


def days(number: float) -> datetime:
    return NOON - timedelta(days=number)


def copied(age: float) -> Remains:
    return Remains(copied_before=days(age))


def run(
    age: float,
    *,
    of: tuple[str, ...] = BOTH,
    known: tuple[str, ...] = BOTH,
    marks: tuple[str, ...] = BOTH,
) -> JudgedRun:
    history = DatabaseHistory(
        system="7712", timeline="1", objects=(1, 2, 3), newest=(None, UUID(int=int(age)))
    )
    return JudgedRun(
        started_at=days(age),
        services=frozenset(of),
        watermarks=dict.fromkeys(marks, days(age)),
        histories=dict.fromkeys(known, history),
    )


@dataclass
class Databases:
    """The database of stock, by its remaining rows of the runs of each age."""

    remains: Mapping[int, Remains]
    last: datetime | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)
    asked_before: list[datetime] = field(default_factory=list)

    def remains_of(self, service: str, earlier: DatabaseHistory) -> Remains:
        _, newest = earlier.newest
        assert newest is not None
        self.asked.append((service, newest.int))
        return self.remains[newest.int] if service == "stock" else THERE

    def last_settled(self, service: str, *, before: datetime) -> datetime | None:
        assert service == "stock"
        assert before in {remains.copied_before for remains in self.remains.values()}
        self.asked_before.append(before)
        return self.last


def run_of_stock(age: float) -> JudgedRun:
    return run(age, of=("stock",), known=("stock",), marks=("stock",))


def judged(databases: Databases, *runs: JudgedRun) -> JudgedUntil:
    restored = as_restored(runs, BOTH, databases, margin=MARGIN)
    return {each.services: each for each in judged_until(restored, BOTH)}[BOTH]


def test_time_that_a_copy_lacks_counts_as_not_judged() -> None:
    databases = Databases({1: copied(2), 2: copied(3)}, last=days(10))

    until = judged(databases, run(1), run(2))

    assert until == JudgedUntil(services=BOTH, until=days(10) - MARGIN, restored=("stock",))
    assert set(databases.asked_before) == {days(3)}
    (told,) = unjudged_spans({FORTH: A_WEEK}, [until])
    assert told.startswith(
        "no run has judged the events between orders and stock from 2026-01-05 00:00:00+0000 to "
        "2026-01-08 12:00:00+0000: the database of stock was restored from an earlier copy"
    )


def test_copy_without_any_kept_time_is_reported_in_full() -> None:
    until = judged(Databases({1: copied(1)}), run(1))

    assert (until.until, until.restored) == (None, ("stock",))
    (told,) = unjudged_spans({FORTH: A_WEEK}, [until])
    assert "between orders and stock to 2026-01-08 12:00:00+0000: the database of" in told
    assert unjudged_spans({FORTH: Window(watermark=NOON)}, [until]) == []


def test_copy_younger_than_the_retention_is_not_reported() -> None:
    until = judged(Databases({1: copied(1)}, last=days(3)), run(1))

    assert until.until == days(3) - MARGIN
    assert unjudged_spans({FORTH: A_WEEK}, [until]) == []


def test_judgements_of_runs_before_the_copy_count() -> None:
    databases = Databases({1: copied(1), 8: copied(8), 9: UNKNOWN, 11: THERE}, last=None)

    until = judged(databases, run(1), run(8), run(9), run(11), run(12))

    assert (until.until, until.restored) == (days(11), ("stock",))
    assert ("stock", 12) not in databases.asked


def test_restored_copy_is_reported_once() -> None:
    """The run that reported the copy has judged the database as restored."""
    until = judged(Databases({1: THERE}), run(1), run(2), run(3))

    assert until == JudgedUntil(services=BOTH, until=days(1))


def test_copy_is_reported_until_a_run_judges_the_service() -> None:
    databases = Databases({2: copied(2)}, last=days(10))
    blind = run(1, known=(), marks=("orders",))

    assert judged(databases, blind, run(2)).until == days(10) - MARGIN


@pytest.mark.parametrize("remains", [THERE, UNKNOWN])
def test_purged_rows_do_not_indicate_a_copy(remains: Remains) -> None:
    databases = Databases({1: remains})

    assert judged(databases, run(1), run(2)).until == days(1)
    assert databases.asked == [("orders", 1), ("stock", 1)]


def test_run_without_the_other_service_does_not_report_a_copy() -> None:
    databases = Databases({1: THERE, 2: copied(2)}, last=days(10))

    until = judged(databases, run_of_stock(1), run(2))

    assert until == JudgedUntil(services=BOTH, until=days(10) - MARGIN, restored=("stock",))


def test_copy_reported_by_a_run_of_one_service_is_not_repeated() -> None:
    runs = run_of_stock(1), run(2)
    databases = Databases({1: THERE, 2: copied(2)}, last=days(10))

    restored = as_restored(runs, BOTH, databases, margin=MARGIN)

    alone = ("stock", "stock")
    until = {each.services: each for each in judged_until(restored, BOTH)}[alone]
    assert until == JudgedUntil(services=alone, until=days(1))


def test_run_between_two_copies_hides_neither() -> None:
    databases = Databases({1: copied(2), 2: THERE, 3: copied(3)}, last=days(10))

    until = judged(databases, run_of_stock(1), run_of_stock(2), run(3))

    assert (until.until, until.restored) == (days(10) - MARGIN, ("stock",))


def test_run_without_the_other_service_proves_a_copy() -> None:
    databases = Databases({1: copied(1), 2: UNKNOWN}, last=days(10))

    assert judged(databases, run_of_stock(1), run(2)).until == days(10) - MARGIN


def test_frequent_runs_of_one_service_hide_no_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restored_copies, "ENOUGH", 1)
    databases = Databases({1: THERE, 2: THERE, 3: copied(3)}, last=days(10))

    until = judged(databases, run_of_stock(1), run_of_stock(2), run(3))

    assert (until.until, until.restored) == (days(10) - MARGIN, ("stock",))


def test_run_of_an_unknown_database_is_like_the_one_before() -> None:
    of_another_release = run(1, known=())
    restored = Databases({2: copied(2)}, last=days(10))

    assert judged(restored, of_another_release, run(2)).until == days(10) - MARGIN
    assert judged(Databases({2: THERE}), of_another_release, run(2)).until == days(1)


def test_databases_are_queried_for_the_read_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restored_copies, "ENOUGH", 2)
    monkeypatch.setattr(judged_spans, "ENOUGH", 2)
    databases = Databases({1: copied(1), 2: copied(2)}, last=days(10))

    assert judged(databases, run(1), run(2), run(3)).until == days(10) - MARGIN
