"""Copies of events and the order of their keys, where missing events are not asked for as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.repair_decisions import AMONG_OTHERS, OVERTAKEN, Policy
from shieldtx.reconcile.verdicts import Verdict
from tests.support.repair_scenarios import BOTH, Pair, absent, lose, write_one_by_one
from tests.support.service import Service

MISSING, ABSENT = Verdict.MISSING_DOWNSTREAM, Verdict.ABSENT_FROM_TOPIC
ABSENT_ALONE = Policy(services=BOTH, named=frozenset({ABSENT}))
PUBLISHED = (ABSENT, RepairAction.PUBLISH_AGAIN)


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    """Four events, of the keys 0, 1, 2 and 0, which all groups have received."""
    pair = Pair(make_service)
    write_one_by_one(pair, 4)
    pair.work()
    return pair


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("out_of_order", [True, False])
def test_a_copy_does_not_come_before_what_its_group_lacks_of_the_key(
    pair: Pair, dry_run: bool, out_of_order: bool
):
    """The broker has lost the later event; the earlier one, which the group lost, it still has."""
    policy = replace(ABSENT_ALONE, out_of_order=out_of_order)
    first, second, _, fourth = (row["event_id"] for row in pair.sent())
    lose(pair, "stock", first, second, fourth)
    found = [*absent(pair, 1, 3), *pair.missing("stock")]

    report = pair.repair(found, policy=policy, dry_run=dry_run)

    if out_of_order:
        assert report.refused == {}
        assert report.repaired == {PUBLISHED: Repaired(done=2, out_of_order=1)}
    else:
        assert report.refused == {(ABSENT, AMONG_OTHERS): 1}
        assert report.repaired == {PUBLISHED: Repaired(done=1)}
    assert pair.audits(pair.stock) == []


@pytest.mark.parametrize("group", ["stock", "mail"])
def test_what_a_group_lacks_is_in_no_other_groups_way(pair: Pair, group: str):
    first, *_, fourth = (row["event_id"] for row in pair.sent())
    lose(pair, "stock", fourth)
    lose(pair, group, first)

    found = [*absent(pair, 3), *pair.missing("stock", "mail")]
    lacked = {("stock", fourth), (group, first)}
    asked = [row for row in found if row.verdict is ABSENT or (row.group, row.event_id) in lacked]
    report = pair.repair(asked, policy=ABSENT_ALONE)

    assert report.refused == ({(ABSENT, AMONG_OTHERS): 1} if group == "stock" else {})


def test_missing_events_that_cannot_come_in_order_any_more_are_in_nobodys_way(pair: Pair):
    """The group has received a later one than the first, so that this is late in any case."""
    write_one_by_one(pair, 1)
    pair.work()
    first, *_, last = (row["event_id"] for row in pair.sent())
    lose(pair, "stock", first, last)
    found = [*absent(pair, 4), *pair.missing("stock")]
    lacked = [row for row in found if row.verdict is ABSENT or row.event_id in {first, last}]

    report = pair.repair(lacked, policy=ABSENT_ALONE)

    assert report.refused == {}
    assert report.repaired == {PUBLISHED: Repaired(done=1)}


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_names_the_reason_that_the_repair_names(pair: Pair, dry_run: bool):
    """The later event is handed over first; the run has not seen that the group lacks the other."""
    first, *_, fourth = (row["event_id"] for row in pair.sent())
    lose(pair, "stock", first, fourth)
    both = Policy(services=BOTH, named=frozenset({MISSING, ABSENT}))
    missing = [row for row in pair.missing("stock") if row.event_id == fourth]

    report = pair.repair([*absent(pair, 0), *missing], policy=both, dry_run=dry_run)

    assert report.refused == {(ABSENT, OVERTAKEN): 1}
    assert report.repaired == {(MISSING, RepairAction.HAND_OVER): Repaired(done=1)}
