"""Groups that the file does not name, and former groups that it should not name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Member, Received
from shieldtx.reconcile.unnamed_groups import mistyped_former_groups, unnamed_groups

ORDERS = Member(name="orders")
PLACED = Received(
    downstream="stock",
    group="reserve",
    source="orders",
    kind=TxKind.COMMIT,
    topic="orders",
    event_type="placed",
)
PAID = replace(PLACED, event_type="paid")
RESERVED = replace(
    PLACED, kind=TxKind.ROLLBACK, event_type="reserved", topic="stock", causation_source="stock"
)
AUDIT = ExpectedGroup(name="audit", topics=("orders",))
UNDO = ExpectedGroup(name="undo", kind=TxKind.ROLLBACK, topics=("stock",))


def stock(*groups, **of):
    return Member(name="stock", groups=groups or None, **of)


def told(member, received=(), earlier=()):
    return list(unnamed_groups([ORDERS, member], received, earlier=earlier))


@pytest.mark.parametrize("when", ["received", "earlier"])
def test_group_missing_in_the_file_is_reported_once(when):
    (remark,) = told(stock(AUDIT), **{when: [PLACED, PAID]})

    assert remark.startswith(
        "group reserve of stock has received paid (orders, COMMIT) of orders, "
        "placed (orders, COMMIT) of orders, and is not named to receive it"
    )
    assert "`former_groups` of stock" in remark


@pytest.mark.parametrize(
    "member",
    [
        stock(),
        # The past decides for events that a group handles.
        stock(UNDO),
        stock(AUDIT, replace(AUDIT, name="reserve")),
        stock(AUDIT, former_groups=(FormerGroup(name="reserve"),)),
        stock(AUDIT, former_groups=(FormerGroup(name="reserve", event_type="placed"),)),
    ],
)
def test_named_or_exempt_group_is_not_reported(member):
    assert told(member, [PLACED], [PLACED]) == []


def test_events_of_a_nonparticipant_are_not_reported():
    assert told(stock(AUDIT), [replace(PLACED, source="legacy")]) == []


def test_group_named_for_other_events_is_reported_if_observed():
    """Only this run counts: the file may have changed with the topic of the received events."""
    moved = stock(AUDIT, ExpectedGroup(name="reserve", topics=("orders.v2",)))
    assert told(moved, [], [PLACED]) == []
    assert len(told(moved, [PLACED])) == 1


def test_group_is_reported_if_another_compensates_its_events():
    assert len(told(stock(UNDO), [RESERVED])) == 1
    # Rollbacks that no group is named to compensate are missed where they have been received.
    assert told(stock(UNDO), [replace(RESERVED, topic="other")]) == []
    assert told(stock(UNDO), [replace(RESERVED, causation_source="orders")]) == []


def test_former_group_that_has_received_nothing_is_an_obstacle():
    known = FormerGroup(name="reserve"), FormerGroup(name="reserve", event_type="placed")
    unknown = FormerGroup(name="resreve"), FormerGroup(name="reserve", event_type="paid")
    elsewhere = Member(name="bank", former_groups=known[:1])

    for groups in ((), (AUDIT,)):
        here = stock(*groups, former_groups=(*known, *unknown))
        problems = mistyped_former_groups([ORDERS, here, elsewhere], [PLACED])
        assert [each.partition(", and no run")[0] for each in problems] == [
            "`former_groups` of stock names resreve",
            "`former_groups` of stock names reserve: paid",
            "`former_groups` of bank names reserve",
        ]


def test_former_group_that_the_file_also_names_is_an_obstacle():
    named = replace(AUDIT, name="reserve")
    former = FormerGroup(name="reserve")

    (problem,) = mistyped_former_groups([ORDERS, stock(named, former_groups=(former,))], [PLACED])

    assert "that the groups in the file do not decide" in problem
