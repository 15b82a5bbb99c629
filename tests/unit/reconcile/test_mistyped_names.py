"""Names in the declaration of groups that fit no event, and those that need not."""

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
        # The events are there, and from nobody who is named.
        (
            declared("paid", event_types=("paid",), upstreams=("mail",)),
            "is to have events from mail,",
        ),
        # Stock sends none of these itself.
        (declared("placed", kind=ROLLBACK), "group audit of stock compensates placed,"),
    ],
)
def test_a_name_that_fits_no_event_is_an_obstacle(stock, told):
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
def test_names_that_fit_or_need_not_are_none(stock):
    everyone = Member(name="mail", groups=(ExpectedGroup(name="all"),))
    types = [sent("orders", "placed"), sent("stock", "reserved")]

    assert list(mistyped_names([ORDERS, stock, everyone], types, [])) == []


def test_a_type_that_a_group_has_ever_received_is_named_rightly():
    """It comes once a month, and neither side keeps it for as long."""
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


def test_a_group_that_compensates_what_it_receives_is_named_rightly():
    """As one that handles events of another service, and one filter for both its halves."""
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


def test_an_event_of_others_that_a_group_compensates_is_named_rightly_or_told():
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


def test_what_only_an_inbox_still_keeps_is_no_mistyped_name():
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
