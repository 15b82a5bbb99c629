"""Inboxes that may lack rows of events with effects, by the observations of earlier runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile import basis
from shieldtx.reconcile.basis import Basis, JudgedService
from shieldtx.reconcile.expectations import Others
from shieldtx.reconcile.incomplete_inboxes import incomplete_inboxes

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
MARGIN = timedelta(minutes=15)
NOW = NOON + MARGIN
"""An inbox that is found to lack rows at noon has all rows from this time on."""
YESTERDAY = NOON - timedelta(days=1)
NONE: dict[str, datetime] = {}


def history(number: int, *, inbox: int = 3, system: str | None = "7712") -> DatabaseHistory:
    return DatabaseHistory(
        system=system,
        timeline="1",
        objects=(1, 2, inbox),
        newest=(None, UUID(int=number)),
        asked_at=NOON,
    )


def judged(
    of: DatabaseHistory | None, *, name: str = "stock", kept: timedelta | None = None
) -> Basis:
    service = JudgedService(
        schema=None, retention=kept, groups=(), others=Others(), other_sources=(), history=of
    )
    return Basis(margin=MARGIN, topics=None, services={name: service})


def run(number: int, *, noted: dict[str, datetime] | None = NONE, **of: int | str | None) -> Basis:
    """Return a run that observed the inbox; `noted=None` is one of an earlier release."""
    return replace(judged(history(number, **of)), incomplete_inboxes=noted)


@dataclass
class Inboxes:
    """The inbox of stock, by the runs whose rows it lacks, or may have purged."""

    lacks: Collection[int] = ()
    purged: Collection[int] = ()
    oldest: datetime | None = None
    asked: list[int] = field(default_factory=list)

    def inbox_has(self, service: str, earlier: DatabaseHistory) -> bool | None:
        assert service == "stock"
        _, newest = earlier.newest
        assert newest is not None
        self.asked.append(newest.int)
        return None if newest.int in self.purged else newest.int not in self.lacks

    def inbox_settled_since(self, service: str) -> datetime | None:
        assert service == "stock"
        return self.oldest


def found(
    own: Iterable[Basis],
    *others: Iterable[Basis],
    now: Basis | None = None,
    **of: Any,
) -> dict[str, datetime]:
    return incomplete_inboxes(own, others, now or judged(history(0)), Inboxes(**of))


def test_inbox_with_its_rows_is_complete():
    assert found([run(1), run(2)]) == {}
    assert found([run(1)], now=judged(None)) == {}


def test_inbox_that_lacks_rows_is_complete_from_now_on():
    assert found([run(1)], lacks=[1]) == {"stock": NOW}


@pytest.mark.parametrize("of", [{"inbox": 4}, {"system": "7713"}])
def test_another_inbox_is_complete_if_it_has_the_rows(of: dict[str, int | str]):
    """This happens after pg_upgrade, or a move of the whole database."""
    assert found([run(1, **of)]) == {}
    assert found([run(1, **of)], lacks=[1]) == {"stock": NOW}


@pytest.mark.parametrize(
    "own",
    [[], [run(1, noted=None)], [judged(None)], [run(2)]],
    ids=["no run", "of an earlier release", "of another service", "all of then may be purged"],
)
def test_unknown_inbox_is_complete_from_its_oldest_row_on(own: list[Basis]):
    assert found(own, purged=[2], oldest=YESTERDAY) == {"stock": YESTERDAY + MARGIN}
    assert found(own, purged=[2], oldest=None) == {"stock": NOW}


def test_notes_of_a_run_are_carried_on():
    assert found([run(1, noted={"stock": YESTERDAY})]) == {"stock": YESTERDAY}
    other = run(2, noted={"stock": YESTERDAY})
    assert found([run(1)], [other]) == {"stock": YESTERDAY}
    assert found([], [other]) == {"stock": YESTERDAY}


def test_latest_run_of_each_configuration_is_sufficient():
    inboxes = Inboxes(lacks=[2, 4])
    own, other = [run(1), run(2)], [run(3), run(4)]
    assert incomplete_inboxes(own, [other], judged(history(0)), inboxes) == {}
    assert inboxes.asked == [1, 3]


def test_runs_of_an_earlier_release_are_skipped():
    assert found([run(1, noted=None), run(2)], lacks=[2]) == {"stock": NOW}


def test_run_of_another_configuration_is_read_in_addition():
    assert found([run(2)], [run(1)], lacks=[1]) == {"stock": NOW}
    assert found([run(2)], [run(1)], lacks=[2]) == {"stock": NOW}
    # The other run is of a service of the same name in another file.
    assert found([run(2)], [run(1, inbox=4, noted={"stock": NOON})], lacks=[1]) == {}


def test_notes_older_than_the_retention_are_dropped():
    runs = [run(1, noted={"stock": YESTERDAY})]
    for kept, is_noted in ((timedelta(days=2), True), (timedelta(hours=23), False)):
        assert bool(found(runs, now=judged(history(0), kept=kept))) is is_noted


def test_notes_of_a_run_are_not_part_of_its_configuration():
    plain = judged(history(0))
    noted = replace(plain, incomplete_inboxes={"stock": NOON})
    assert basis.from_json(basis.to_json(noted)) == noted
    texts = {basis.configuration_of(basis.to_json(each)) for each in (plain, noted)}
    assert len(texts) == 1
    assert basis.changes(plain, noted) == []
