"""Names in declarations of groups that match no event, and names that need not match."""

from __future__ import annotations

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, Member, Received, Sent
from shieldtx.reconcile.mistyped_names import mistyped_names

COMMIT, ROLLBACK = TxKind.COMMIT, TxKind.ROLLBACK
ORDERS = Member(name="orders")


def sent(upstream, topic):
    return Sent(upstream=upstream, kind=COMMIT, topic=topic, event_type=topic)


def declared(*topics, **more):
    group = ExpectedGroup(name="audit", topics=topics, **more)
    return Member(name="stock", groups=(group,))


@pytest.mark.parametrize(
    ("stock", "told"),
    [
        (declared("placed", "order"), "group audit of stock receives order,"),
        (
            declared("placed", event_types=("placed.late", "placed")),
            "is to have the events placed.late,",
        ),
        (declared("placed", upstreams=("orders", "mail")), "is to have events from mail,"),
        # The events exist, and none comes from a named service.
        (
            declared("paid", event_types=("paid",), upstreams=("mail",)),
            "is to have events from mail,",
        ),
        # Stock itself sends none of these.
        (declared("placed", kind=ROLLBACK), "group audit of stock compensates placed,"),
    ],
)
def test_name_that_matches_no_event_is_an_obstacle(stock, told):
    everyone = Member(name="mail", groups=(ExpectedGroup(name="all"),))
    types = [sent("orders", "placed"), sent("orders", "paid"), sent("stock", "reserved")]

    ((whose, problem),) = mistyped_names([ORDERS, stock, everyone], types, [])

    assert whose == "stock"
    assert told in problem


@pytest.mark.parametrize(
    "stock",
    [
        declared("placed", event_types=("placed",), upstreams=("orders",)),
        declared("reserved", kind=ROLLBACK),
        declared("placed", "recalled", may_be_unused=("recalled",)),
        declared("placed", upstreams=("orders", "later"), may_be_unused=("later",)),
        declared(),
    ],
)
def test_names_that_match_or_need_not_are_accepted(stock):
    everyone = Member(name="mail", groups=(ExpectedGroup(name="all"),))
    types = [sent("orders", "placed"), sent("stock", "reserved")]

    assert list(mistyped_names([ORDERS, stock, everyone], types, [])) == []


def test_type_ever_received_by_a_group_is_a_valid_name():
    """The event comes once a month, and neither side keeps it for as long."""
    stock = declared("placed", "invoiced")
    types = [sent("orders", "placed")]
    invoiced = Received(
        downstream="stock",
        group="audit",
        source="orders",
        kind=COMMIT,
        topic="invoiced",
        event_type="invoiced",
    )
    ((_, problem),) = mistyped_names([ORDERS, stock], types, [])
    assert "receives invoiced, and no such event is kept, nor has a run seen one" in problem

    assert list(mistyped_names([ORDERS, stock], types, [invoiced])) == []


def test_group_may_name_compensated_and_handled_types():
    """One filter applies to both halves of the group, which handles events of another service."""
    both = {"name": "audit", "event_types": ("placed", "reserved")}
    stock = Member(
        name="stock",
        groups=(
            ExpectedGroup(topics=("placed",), **both),
            ExpectedGroup(kind=ROLLBACK, topics=("placed", "reserved"), **both),
        ),
    )
    everyone = Member(name="mail", groups=(ExpectedGroup(name="all"),))
    types = [sent("orders", "placed"), sent("stock", "reserved")]

    assert list(mistyped_names([ORDERS, stock, everyone], types, [])) == []


def test_foreign_type_to_compensate_is_valid_or_reported():
    halves = (
        ExpectedGroup(name="audit", topics=("placed",)),
        ExpectedGroup(
            name="audit",
            kind=ROLLBACK,
            of_others=True,
            topics=("placed",),
            event_types=("placed", "reserved", "later"),
            may_be_unused=("later",),
        ),
    )
    stock = Member(name="stock", groups=halves)
    types = [sent("orders", "placed"), sent("stock", "reserved")]

    ((whose, problem),) = mistyped_names([ORDERS, stock], types, [])

    assert whose == "stock"
    assert "group audit of stock compensates events of others called reserved, and no" in problem


def test_type_kept_by_an_inbox_only_is_a_valid_name():
    stock = declared("recalled", event_types=("recalled",), upstreams=("orders",))
    past = [
        Received(
            downstream="stock",
            group="audit",
            source="orders",
            kind=COMMIT,
            topic="recalled",
            event_type="recalled",
        )
    ]

    assert list(mistyped_names([ORDERS, stock], [], past)) == []
