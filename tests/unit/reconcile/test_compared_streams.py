"""The pairs of services between which events can go, by configuration and by received events."""

from __future__ import annotations

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.compared_streams import possible_streams
from shieldtx.reconcile.expectations import ExpectedGroup, Member, Received, Stream


def member(name, *groups):
    return Member(name=name, groups=groups or None)


def between(*members, received=()):
    return {(each.upstream, each.downstream) for each in possible_streams(members, received)}


def test_named_group_may_receive_from_each_other_service():
    reserve = ExpectedGroup(name="reserve", topics=("orders.placed",))
    found = between(member("orders"), member("mail"), member("stock", reserve))
    assert found == {("orders", "stock"), ("mail", "stock")}


def test_group_that_names_upstreams_receives_from_these_alone():
    reserve = ExpectedGroup(name="reserve", upstreams=("orders",))
    found = between(member("orders"), member("mail"), member("stock", reserve))
    assert found == {("orders", "stock")}


def test_received_events_count_with_and_without_named_groups():
    seen = Received(
        downstream="orders",
        group="undo",
        source="stock",
        kind=TxKind.ROLLBACK,
        topic="orders.placed",
        event_type="orders.placed",
    )
    assert possible_streams([member("orders"), member("stock")], [seen]) == {
        Stream(kind=TxKind.ROLLBACK, upstream="stock", downstream="orders")
    }
    # A service that takes no part has no clock to judge by.
    assert between(member("orders"), received=[seen]) == set()
