"""What runs have judged of databases that were restored since from earlier copies."""

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
    """The database of stock, by what it has left of the runs of each age."""

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


def test_what_a_copy_lacks_counts_as_not_judged() -> None:
    databases = Databases({1: copied(2), 2: copied(3)}, last=days(10))

    until = judged(databases, run(1), run(2))

    assert until == JudgedUntil(services=BOTH, until=days(10) - MARGIN, restored=("stock",))
    assert set(databases.asked_before) == {days(3)}
    (told,) = unjudged_spans({FORTH: A_WEEK}, [until])
    assert told.startswith(
        "no run has judged the events between orders and stock from 2026-01-05 00:00:00+0000 to "
        "2026-01-08 12:00:00+0000: the database of stock was restored from an earlier copy"
    )


def test_of_a_copy_of_which_no_time_is_left_all_is_told() -> None:
    until = judged(Databases({1: copied(1)}), run(1))

    assert (until.until, until.restored) == (None, ("stock",))
    (told,) = unjudged_spans({FORTH: A_WEEK}, [until])
    assert "between orders and stock to 2026-01-08 12:00:00+0000: the database of" in told
    assert unjudged_spans({FORTH: Window(watermark=NOON)}, [until]) == []


def test_a_copy_that_is_younger_than_what_is_kept_leaves_nothing_to_tell() -> None:
    until = judged(Databases({1: copied(1)}, last=days(3)), run(1))

    assert until.until == days(3) - MARGIN
    assert unjudged_spans({FORTH: A_WEEK}, [until]) == []


def test_what_runs_before_the_copy_have_judged_counts() -> None:
    databases = Databases({1: copied(1), 8: copied(8), 9: UNKNOWN, 11: THERE}, last=None)

    until = judged(databases, run(1), run(8), run(9), run(11), run(12))

    assert (until.until, until.restored) == (days(11), ("stock",))
    assert ("stock", 12) not in databases.asked


def test_it_is_told_once() -> None:
    """The run that told it has judged the database as it was restored."""
    until = judged(Databases({1: THERE}), run(1), run(2), run(3))

    assert until == JudgedUntil(services=BOTH, until=days(1))


def test_it_is_told_until_a_run_could_judge_the_service() -> None:
    databases = Databases({2: copied(2)}, last=days(10))
    blind = run(1, known=(), marks=("orders",))

    assert judged(databases, blind, run(2)).until == days(10) - MARGIN


@pytest.mark.parametrize("remains", [THERE, UNKNOWN])
def test_rows_that_may_have_been_purged_are_no_sign_of_a_copy(remains: Remains) -> None:
    databases = Databases({1: remains})

    assert judged(databases, run(1), run(2)).until == days(1)
    assert databases.asked == [("orders", 1), ("stock", 1)]


def test_a_run_without_the_other_service_has_not_told_it() -> None:
    databases = Databases({1: THERE, 2: copied(2)}, last=days(10))

    until = judged(databases, run_of_stock(1), run(2))

    assert until == JudgedUntil(services=BOTH, until=days(10) - MARGIN, restored=("stock",))


def test_what_a_run_without_the_other_service_told_is_not_told_again() -> None:
    runs = run_of_stock(1), run(2)
    databases = Databases({1: THERE, 2: copied(2)}, last=days(10))

    restored = as_restored(runs, BOTH, databases, margin=MARGIN)

    alone = ("stock", "stock")
    until = {each.services: each for each in judged_until(restored, BOTH)}[alone]
    assert until == JudgedUntil(services=alone, until=days(1))


def test_of_two_copies_a_run_between_them_hides_neither() -> None:
    databases = Databases({1: copied(2), 2: THERE, 3: copied(3)}, last=days(10))

    until = judged(databases, run_of_stock(1), run_of_stock(2), run(3))

    assert (until.until, until.restored) == (days(10) - MARGIN, ("stock",))


def test_a_run_without_the_other_service_proves_a_copy() -> None:
    databases = Databases({1: copied(1), 2: UNKNOWN}, last=days(10))

    assert judged(databases, run_of_stock(1), run(2)).until == days(10) - MARGIN


def test_more_frequent_runs_without_the_other_service_hide_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restored_copies, "ENOUGH", 1)
    databases = Databases({1: THERE, 2: THERE, 3: copied(3)}, last=days(10))

    until = judged(databases, run_of_stock(1), run_of_stock(2), run(3))

    assert (until.until, until.restored) == (days(10) - MARGIN, ("stock",))


def test_runs_of_which_the_database_is_not_known_are_as_the_one_before() -> None:
    of_another_release = run(1, known=())
    restored = Databases({2: copied(2)}, last=days(10))

    assert judged(restored, of_another_release, run(2)).until == days(10) - MARGIN
    assert judged(Databases({2: THERE}), of_another_release, run(2)).until == days(1)


def test_no_more_runs_are_asked_about_than_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restored_copies, "ENOUGH", 2)
    monkeypatch.setattr(judged_spans, "ENOUGH", 2)
    databases = Databases({1: copied(1), 2: copied(2)}, last=days(10))

    assert judged(databases, run(1), run(2), run(3)).until == days(10) - MARGIN
