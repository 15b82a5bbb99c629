"""Which inboxes may lack rows of events that have had their effects, by what runs knew of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile import basis
from shieldtx.reconcile.basis import Basis, JudgedService
from shieldtx.reconcile.expectations import Others
from shieldtx.reconcile.incomplete_inboxes import EarlierRun, incomplete_inboxes, noticed_before

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
MARGIN = timedelta(minutes=15)
NOW = NOON + MARGIN
"""From when an inbox has all rows that is found to lack some at noon."""
YESTERDAY = NOON - timedelta(days=1)


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


def run(
    number: int,
    *,
    scope: str = "nightly",
    good: bool = False,
    noted: dict[str, datetime] | None = None,
    **of: int | str | None,
) -> EarlierRun:
    """Return a run of the present release; `noted=None` is one of an earlier release."""
    known = replace(judged(history(number, **of)), incomplete_inboxes=noted)
    return EarlierRun(scope=scope, basis=known, good=good)


def new(number: int, **of: int | str | bool | None) -> EarlierRun:
    return run(number, **({"noted": {}} | of))


@dataclass
class Inboxes:
    """The inbox of stock, by the runs whose rows it lacks."""

    lacks: Collection[int] = ()
    asked: list[int] = field(default_factory=list)

    def inbox_lacks(self, service: str, earlier: DatabaseHistory) -> bool:
        assert service == "stock"
        _, newest = earlier.newest
        assert newest is not None
        self.asked.append(newest.int)
        return newest.int in self.lacks


def found(
    runs: Iterable[EarlierRun], lacks: Collection[int] = (), now: Basis | None = None
) -> dict[str, datetime]:
    current = now or judged(history(0))
    return incomplete_inboxes(runs, current, Inboxes(lacks), scope="nightly")


def test_an_inbox_that_has_its_rows_is_whole():
    assert found([new(1), new(2)]) == {}
    assert found([]) == {}
    assert found([new(1)], now=judged(None)) == {}
    assert found([EarlierRun(scope="nightly", basis=judged(None), good=True)]) == {}


def test_an_inbox_that_lacks_rows_is_whole_from_now_on():
    assert found([new(1)], lacks=[1]) == {"stock": NOW}


@pytest.mark.parametrize("of", [{"inbox": 4}, {"system": "7713"}])
def test_another_inbox_is_whole_from_now_on(of: dict[str, int | str]):
    assert found([new(1, **of)]) == {"stock": NOW}


def test_a_system_that_a_role_may_not_ask_for_is_no_other_one():
    assert found([new(1, system=None)]) == {}


def test_another_outbox_or_timeline_says_nothing_of_the_inbox():
    now = replace(history(0), timeline="2", objects=(1, 9, 3))
    assert found([new(1)], now=judged(now)) == {}


def test_what_a_run_has_noted_is_carried_on_also_by_good_ones():
    for good in (False, True):
        assert found([new(1, noted={"stock": YESTERDAY}, good=good)]) == {"stock": YESTERDAY}


def test_the_latest_run_stands_for_those_before_it():
    inboxes = Inboxes(lacks=[2])
    runs = [new(1), new(2)]
    assert incomplete_inboxes(runs, judged(history(0)), inboxes, scope="nightly") == {}
    assert inboxes.asked == [1]


def test_runs_of_an_earlier_release_count_up_to_a_good_one():
    assert found([run(1), run(2)], lacks=[2]) == {"stock": NOW}
    assert found([run(1), run(2, good=True), run(3)], lacks=[3]) == {}


def test_runs_of_another_name_count_since_the_latest_of_the_own_name():
    other = {"scope": "other"}
    assert found([new(1, **other), new(2)], lacks=[1]) == {"stock": NOW}
    assert found([new(1), new(2, **other)], lacks=[2]) == {}
    assert found([new(1, **other), new(2, **other), new(3)], lacks=[2]) == {}
    # A run that began to look after the loss ends nothing.
    noted = new(2, noted={"stock": YESTERDAY})
    assert found([new(1, **other), noted]) == {"stock": YESTERDAY}
    # It is a service of the same name in another file.
    assert found([new(1, inbox=4, **other), new(2)]) == {}


def test_what_is_older_than_rows_are_kept_is_forgotten():
    runs = [new(1, noted={"stock": YESTERDAY})]
    for kept, is_noted in ((timedelta(days=2), True), (timedelta(hours=23), False)):
        assert bool(found(runs, now=judged(history(0), kept=kept))) is is_noted


def test_a_run_of_an_earlier_release_has_sentences_alone():
    said = (
        "the inbox of stock lacks what was its newest event: the database was restored from",
        "the outbox of mail lacks what was its newest event: the database was restored from",
        "the database of bills is another one, or its tables were recreated",
        "the database of desk was restored to a point in time, or a replica of it was promoted",
    )
    services = ("stock", "mail", "bills", "desk", "sto")
    assert noticed_before(said, services) == {"stock", "bills"}


def test_what_a_run_notes_is_no_part_of_its_configuration():
    plain = judged(history(0))
    noted = replace(plain, incomplete_inboxes={"stock": NOON})
    assert basis.from_json(basis.to_json(noted)) == noted
    texts = {basis.configuration_of(basis.to_json(each)) for each in (plain, noted)}
    assert len(texts) == 1
    assert basis.changes(plain, noted) == []
