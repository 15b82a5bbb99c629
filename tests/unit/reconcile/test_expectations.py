"""The expected receivers of events: by declaration, or by the past."""

from __future__ import annotations

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import (
    NO_GROUP,
    ExpectedGroup,
    FormerGroup,
    Member,
    Others,
    Received,
    Sent,
    Stream,
)
from shieldtx.reconcile.routes import expectation_of, expected_by_the_past

COMMIT, ROLLBACK = TxKind.COMMIT, TxKind.ROLLBACK
ORDERS, STOCK, MAIL = Member(name="orders"), Member(name="stock"), Member(name="mail")


def sent(upstream, topic, event_type=None):
    return Sent(upstream=upstream, kind=COMMIT, topic=topic, event_type=event_type or topic)


def taken_back(upstream, of, topic, event_type=None):
    """Return a type of rollbacks that a service wrote of another one's events."""
    return Sent(
        upstream=upstream,
        kind=ROLLBACK,
        topic=topic,
        event_type=event_type or topic,
        causation_source=of,
    )


def received(downstream, group, source, topic, event_type=None):
    return Received(
        downstream=downstream,
        group=group,
        source=source,
        kind=COMMIT,
        topic=topic,
        event_type=event_type or topic,
    )


def returned(downstream, group, source, topic, *, of=None, event_type=None):
    """Return a type of rollbacks that a group received, by default of its own service's events."""
    return Received(
        downstream=downstream,
        group=group,
        source=source,
        kind=ROLLBACK,
        topic=topic,
        event_type=event_type or topic,
        causation_source=of or downstream,
    )


def group(name, *topics, kind=COMMIT, **fields):
    return ExpectedGroup(name=name, kind=kind, topics=topics, **fields)


def routes(members, sent=(), received=()):
    """Return the expected routes: kind, upstream, downstream, group, event type."""
    found = expectation_of(members, sent=sent, received=received).routes
    return {named(route) for route in found if route.expected}


def unexpected(members, sent=(), received=()):
    found = expectation_of(members, sent=sent, received=received).routes
    return {named(route) for route in found if not route.expected}


def named(route):
    stream = route.stream
    return (stream.kind, stream.upstream, stream.downstream, route.group, route.event_type)


def test_without_events_there_is_nothing_to_judge():
    found = expectation_of([ORDERS, STOCK], sent=[], received=[])
    assert (found.routes, found.obstacles, found.left_out) == ((), (), ())


# By the past.


def test_group_is_expected_to_receive_its_earlier_types():
    found = routes(
        [ORDERS, STOCK],
        [sent("orders", "placed")],
        [received("stock", "reserve", "orders", "placed")],
    )
    assert found == {(COMMIT, "orders", "stock", "reserve", "placed")}


def test_type_never_received_by_a_group_is_not_expected():
    found = routes(
        [ORDERS, STOCK],
        [sent("orders", "orders", "placed"), sent("orders", "orders", "paid")],
        [received("stock", "reserve", "orders", "orders", "placed")],
    )
    assert found == {(COMMIT, "orders", "stock", "reserve", "placed")}


def test_same_type_of_another_service_is_another_route():
    found = routes(
        [ORDERS, Member(name="shop"), STOCK],
        [sent("orders", "placed"), sent("shop", "placed")],
        [received("stock", "reserve", "orders", "placed")],
    )
    assert found == {(COMMIT, "orders", "stock", "reserve", "placed")}


def test_services_and_groups_may_have_many_routes():
    found = routes(
        [ORDERS, STOCK, MAIL],
        [sent("orders", "placed"), sent("stock", "reserved")],
        [
            received("stock", "reserve", "orders", "placed"),
            received("stock", "ledger", "orders", "placed"),
            received("mail", "notify", "orders", "placed"),
            received("mail", "notify", "stock", "reserved"),
        ],
    )
    assert found == {
        (COMMIT, "orders", "stock", "reserve", "placed"),
        (COMMIT, "orders", "stock", "ledger", "placed"),
        (COMMIT, "orders", "mail", "notify", "placed"),
        (COMMIT, "stock", "mail", "notify", "reserved"),
    }


def test_groups_of_the_same_name_in_two_services_are_two():
    found = routes(
        [ORDERS, STOCK, MAIL],
        [sent("orders", "placed")],
        [
            received("stock", "ledger", "orders", "placed"),
            received("mail", "ledger", "orders", "placed"),
        ],
    )
    assert {(downstream, group) for _, _, downstream, group, _ in found} == {
        ("stock", "ledger"),
        ("mail", "ledger"),
    }


def test_service_may_receive_its_own_events():
    found = routes(
        [ORDERS],
        [sent("orders", "placed")],
        [received("orders", "invoices", "orders", "placed")],
    )
    assert found == {(COMMIT, "orders", "orders", "invoices", "placed")}


def test_past_gives_no_limit_of_attempts():
    found = expectation_of(
        [ORDERS, STOCK], sent=[], received=[received("stock", "reserve", "orders", "placed")]
    )
    assert [route.max_attempts for route in found.routes] == [None]


# By declaration.


def test_declared_group_is_expected_to_receive_new_types():
    stock = Member(name="stock", groups=(group("reserve", "placed"),))
    found = routes([ORDERS, stock], [sent("orders", "placed"), sent("orders", "paid")])
    assert found == {(COMMIT, "orders", "stock", "reserve", "placed")}


def test_group_without_topics_expects_those_of_other_services():
    stock = Member(name="stock", groups=(group("reserve"),))
    found = routes(
        [ORDERS, stock, MAIL],
        [sent("orders", "placed"), sent("mail", "bounced"), sent("stock", "reserved")],
    )
    assert found == {
        (COMMIT, "orders", "stock", "reserve", "placed"),
        (COMMIT, "mail", "stock", "reserve", "bounced"),
    }


def test_group_expects_own_service_events_of_named_topics():
    stock = Member(name="stock", groups=(group("audit", "reserved"),))
    found = routes([stock], [sent("stock", "reserved"), sent("stock", "released")])
    assert found == {(COMMIT, "stock", "stock", "audit", "reserved")}


def test_event_types_and_upstreams_narrow_the_expectation():
    mail = Member(
        name="mail",
        groups=(
            group("notify", "events", event_types=("placed",)),
            group("ledger", "events", upstreams=("stock",)),
        ),
    )
    found = routes(
        [ORDERS, STOCK, mail],
        [
            sent("orders", "events", "placed"),
            sent("orders", "events", "paid"),
            sent("stock", "events", "reserved"),
        ],
    )
    assert found == {
        (COMMIT, "orders", "mail", "notify", "placed"),
        (COMMIT, "stock", "mail", "ledger", "reserved"),
    }


def test_declared_groups_replace_the_past():
    """Events that other groups received are compared in addition."""
    stock = Member(name="stock", groups=(group("billing", "placed"),))
    past = [received("stock", "reserve", "orders", "placed")]
    assert routes([ORDERS, stock], [sent("orders", "placed")], past) == {
        (COMMIT, "orders", "stock", "billing", "placed")
    }
    assert unexpected([ORDERS, stock], [sent("orders", "placed")], past) == {
        (COMMIT, "orders", "stock", "reserve", "placed")
    }


def test_declared_and_observed_route_is_one_with_its_limit():
    stock = Member(name="stock", groups=(group("reserve", "placed", max_attempts=7),))
    found = expectation_of(
        [ORDERS, stock],
        sent=[sent("orders", "placed")],
        received=[received("stock", "reserve", "orders", "placed")],
    )
    (route,) = found.routes
    assert (route.expected, route.max_attempts) == (True, 7)
    assert route.stream == Stream(kind=COMMIT, upstream="orders", downstream="stock")


def test_kind_without_a_declared_group_follows_the_past():
    orders = Member(name="orders", groups=(group("invoices", "reserved"),))
    found = routes(
        [orders, STOCK],
        [sent("stock", "reserved"), taken_back("stock", "orders", "placed")],
        [returned("orders", "refund", "stock", "placed")],
    )
    assert found == {
        (COMMIT, "stock", "orders", "invoices", "reserved"),
        (ROLLBACK, "stock", "orders", "refund", "placed"),
    }


# Rollbacks.


def test_rollback_is_expected_by_the_event_writer_alone():
    everything = ExpectedGroup(name="refund", kind=ROLLBACK)
    members = [
        Member(name="orders", groups=(everything,)),
        Member(name="stock", groups=(everything,)),
        MAIL,
    ]
    found = routes(
        members,
        [taken_back("mail", "orders", "placed"), taken_back("mail", "stock", "reserved")],
    )
    assert found == {
        (ROLLBACK, "mail", "orders", "refund", "placed"),
        (ROLLBACK, "mail", "stock", "refund", "reserved"),
    }


# Rollbacks of events of other services.

REFUND = returned("orders", "refund", "stock", "placed")
REFUNDED = (ROLLBACK, "stock", "orders", "refund", "placed")


def undoing(name, *topics, types=(), upstreams=()):
    """Declare a group that handles and compensates events of other services."""
    both = {"name": name, "topics": topics, "upstreams": upstreams}
    return (
        ExpectedGroup(**both),
        ExpectedGroup(**both, kind=ROLLBACK, of_others=True, event_types=types or topics),
    )


def test_declared_foreign_compensation_expects_each_rollback():
    mail = Member(name="mail", groups=undoing("notify", "placed"))
    back = [taken_back(by, "orders", "placed") for by in ("stock", "mail")]
    assert routes([ORDERS, STOCK, mail], back, [REFUND]) == {
        REFUNDED,
        (ROLLBACK, "mail", "orders", NO_GROUP, "placed"),
        (ROLLBACK, "stock", "mail", "notify", "placed"),
        (ROLLBACK, "mail", "mail", "notify", "placed"),
    }


@pytest.mark.parametrize(
    "groups",
    [
        # The group handles the event, and does not declare a compensation.
        (group("notify", "placed"),),
        # The group compensates events of its own service, on the same topic and of the same type.
        (group("notify", "placed"), group("notify", "placed", kind=ROLLBACK)),
        (group("notify", "placed"), group("notify", kind=ROLLBACK)),
        undoing("notify", "other"),
        undoing("notify", "placed", types=("paid",)),
        undoing("notify", "placed", upstreams=("stock",)),
    ],
)
def test_rollback_is_not_missed_without_declared_compensation(groups):
    mail = Member(name="mail", groups=groups)
    back = [taken_back("stock", "orders", "placed")]
    assert routes([ORDERS, STOCK, mail], back, [REFUND]) == {REFUNDED}


def test_earlier_foreign_compensation_expects_each_rollback():
    past = [
        REFUND,
        received("mail", "notify", "orders", "placed"),
        returned("mail", "notify", "shop", "placed", of="orders"),
    ]
    members = [ORDERS, STOCK, MAIL, Member(name="shop")]
    back = [taken_back("stock", "orders", "placed"), taken_back("stock", "orders", "paid")]
    expected = {
        REFUNDED,
        (ROLLBACK, "stock", "orders", NO_GROUP, "paid"),
        (ROLLBACK, "stock", "mail", "notify", "placed"),
        (COMMIT, "orders", "mail", "notify", "placed"),
    }
    assert routes(members, back, past) == expected
    handles = Member(name="mail", groups=(group("notify", "placed"),))
    members = [ORDERS, STOCK, handles, Member(name="shop")]
    assert (ROLLBACK, "stock", "mail", "notify", "placed") in routes(members, back, past)


@pytest.mark.parametrize(
    "mail",
    [
        MAIL,
        Member(name="mail", groups=(group("notify", "paid"),)),
        Member(name="mail", groups=(group("other", "placed"),)),
        Member(name="mail", groups=undoing("other", "paid")),
    ],
)
def test_rollback_received_for_own_events_is_not_missed(mail):
    """Two services write a type: each receives the rollbacks of both, and skips foreign ones."""
    heard = returned("mail", "notify", "stock", "placed", of="orders")
    back = [taken_back("stock", "orders", "placed")]
    assert routes([ORDERS, STOCK, mail], back, [REFUND, heard]) == {REFUNDED}
    assert unexpected([ORDERS, STOCK, mail], back, [REFUND, heard]) == {
        (ROLLBACK, "stock", "mail", "notify", "placed")
    }


def test_rollbacks_of_two_writers_of_a_type_are_two_routes():
    """A group compensates the type of one writer, its service compensates its own events."""
    shop = Member(name="shop", groups=undoing("notify", "placed", upstreams=("orders",)))
    back = [taken_back("stock", "orders", "placed"), taken_back("stock", "shop", "placed")]
    found = expectation_of([ORDERS, STOCK, shop], sent=back, received=[REFUND]).routes
    assert {(*named(route), route.causation_source) for route in found} == {
        (*REFUNDED, "orders"),
        (ROLLBACK, "stock", "shop", "notify", "placed", "orders"),
        (ROLLBACK, "stock", "shop", NO_GROUP, "placed", "shop"),
    }


def test_rollbacks_of_a_nonparticipant_have_no_route():
    """This holds wherever the rollbacks arrive."""
    mail = Member(name="mail", groups=undoing("notify", "placed"))
    heard = returned("mail", "notify", "stock", "placed", of="legacy")
    found = expectation_of(
        [STOCK, mail], sent=[taken_back("stock", "legacy", "placed")], received=[heard]
    )
    assert found.routes == ()


def test_new_rollback_is_expected_by_no_group():
    found = routes(
        [ORDERS, STOCK],
        [taken_back("stock", "orders", "placed"), taken_back("stock", "orders", "paid")],
        [returned("orders", "refund", "stock", "placed")],
    )
    assert found == {
        (ROLLBACK, "stock", "orders", "refund", "placed"),
        (ROLLBACK, "stock", "orders", NO_GROUP, "paid"),
    }


def test_rollback_without_a_declared_group_is_for_no_group():
    orders = Member(name="orders", groups=(group("refund", "placed", kind=ROLLBACK),))
    back = [taken_back("stock", "orders", "placed"), taken_back("stock", "orders", "paid")]
    assert routes([orders, STOCK], back) == {
        (ROLLBACK, "stock", "orders", "refund", "placed"),
        (ROLLBACK, "stock", "orders", NO_GROUP, "paid"),
    }


def test_rollback_received_by_one_undeclared_group_is_expected():
    """A rollback that this group lacks, no group has: a loss counts as missing."""
    orders = Member(name="orders", groups=(group("refund", "placed", kind=ROLLBACK),))
    back = [taken_back("stock", "orders", "placed"), taken_back("stock", "orders", "paid")]
    past = [returned("orders", "undo", "stock", "paid")]
    assert routes([orders, STOCK], back, past) == {
        (ROLLBACK, "stock", "orders", "refund", "placed"),
        (ROLLBACK, "stock", "orders", "undo", "paid"),
    }


def test_rollback_of_a_declared_type_is_for_that_group_alone():
    orders = Member(name="orders", groups=(group("refund", "placed", kind=ROLLBACK),))
    back = [taken_back("stock", "orders", "placed")]
    past = [returned("orders", "undo", "stock", "placed")]
    assert routes([orders, STOCK], back, past) == {
        (ROLLBACK, "stock", "orders", "refund", "placed")
    }
    assert unexpected([orders, STOCK], back, past) == {
        (ROLLBACK, "stock", "orders", "undo", "placed")
    }


def test_rollbacks_of_several_undeclared_groups_are_obstacles():
    orders = Member(name="orders", groups=(group("refund", "placed", kind=ROLLBACK),))
    back = [taken_back("stock", "orders", "events", "paid")]
    past = [
        returned("orders", name, "stock", "events", event_type="paid") for name in ("undo", "audit")
    ]
    assert routes([orders, STOCK], back, past) == set()
    ((upstream, why),) = expectation_of([orders, STOCK], sent=back, received=past).obstacles
    assert upstream == "stock"
    assert "the groups audit, undo of orders have received rollbacks of paid (events)" in why
    assert "`compensates`" in why


def test_rollback_of_a_nonparticipant_is_left_out():
    found = expectation_of([STOCK], sent=[taken_back("stock", "legacy", "placed")], received=[])
    assert (found.routes, found.obstacles) == ((), ())
    (sentence,) = found.left_out
    assert "stock has taken back events of legacy" in sentence


# Events that cannot be judged.


def test_topic_without_a_receiving_group_is_an_obstacle():
    found = expectation_of(
        [ORDERS, STOCK],
        sent=[sent("orders", "placed"), sent("orders", "archived"), sent("orders", "paid")],
        received=[received("stock", "reserve", "orders", "paid")],
    )
    ((upstream, why),) = found.obstacles
    assert upstream == "orders"
    assert "archived, placed of orders" in why
    assert "name the groups" in why


def test_unexpectedly_received_topic_stays_an_obstacle():
    stock = Member(name="stock", groups=(group("billing", "paid"),))
    found = expectation_of(
        [ORDERS, stock],
        sent=[sent("orders", "placed"), sent("orders", "paid")],
        received=[received("stock", "reserve", "orders", "placed")],
    )
    assert [upstream for upstream, _ in found.obstacles] == ["orders"]


def test_topic_for_others_is_not_an_obstacle():
    orders = Member(name="orders", others=Others.named("shipping"))
    assert not expectation_of([orders], sent=[sent("orders", "shipping")], received=[]).obstacles
    other = sent("stock", "shipping")
    assert expectation_of([orders, STOCK], sent=[other], received=[]).obstacles


def test_type_without_a_group_is_an_obstacle_in_a_used_topic():
    types = [sent("orders", "orders", each) for each in ("placed", "refunded", "recalled")]
    past = [received("stock", "reserve", "orders", "orders", "placed")]
    declared = Member(name="stock", groups=(group("reserve", "orders", event_types=("placed",)),))
    for stock in (declared, STOCK):
        ((upstream, why),) = expectation_of([ORDERS, stock], sent=types, received=past).obstacles
        assert upstream == "orders"
        assert "receive recalled (orders), refunded (orders) of orders: name the groups" in why
        assert "list the types in `for_others`" in why


def test_type_expected_on_one_topic_is_an_obstacle_on_another():
    found = expectation_of(
        [ORDERS, STOCK],
        sent=[sent("orders", "orders", "placed"), sent("orders", "archive", "placed")],
        received=[received("stock", "reserve", "orders", "orders", "placed")],
    )
    ((_, why),) = found.obstacles
    assert "receive placed (archive) of orders" in why


def test_type_expected_as_rollback_only_is_an_obstacle():
    stock = Member(name="stock", groups=(group("refund", "orders", kind=ROLLBACK),))
    types = [sent("orders", "orders", "placed"), taken_back("orders", "stock", "orders", "placed")]
    found = expectation_of([ORDERS, stock], sent=types, received=[])
    assert [upstream for upstream, _ in found.obstacles] == ["orders"]


def test_type_for_others_is_not_an_obstacle():
    types = [sent("orders", "orders", each) for each in ("placed", "refunded", "recalled")]
    past = [received("stock", "reserve", "orders", "orders", "placed")]

    def obstacles(*others):
        orders = Member(name="orders", others=Others.named(*others))
        stock = Member(name="stock", others=Others.named("refunded", "recalled"))
        return expectation_of([orders, stock], sent=types, received=past).obstacles

    assert obstacles("refunded", "recalled") == ()
    assert obstacles("orders") == ()
    ((_, why),) = obstacles("refunded", "recaled")
    assert "receive recalled (orders) of orders" in why


def test_type_for_others_does_not_cover_a_topic_of_its_name():
    orders = Member(name="orders", others=Others(event_types=("placed",)))
    types = [sent("orders", "placed", each) for each in ("placed", "refunded")]
    ((_, why),) = expectation_of([orders, STOCK], sent=types, received=[]).obstacles
    assert "receive refunded (placed) of orders" in why


def test_topic_for_others_does_not_cover_a_type_of_its_name():
    orders = Member(name="orders", others=Others(topics=("audits",)))
    types = [sent("orders", "audits", "noted"), sent("orders", "orders", "audits")]
    ((_, why),) = expectation_of([orders, STOCK], sent=types, received=[]).obstacles
    assert "receive audits (orders) of orders" in why


def test_each_service_has_an_obstacle_of_its_own():
    found = expectation_of(
        [ORDERS, STOCK],
        sent=[sent("stock", "reserved"), sent("orders", "placed")],
        received=[],
    )
    assert [upstream for upstream, _ in found.obstacles] == ["orders", "stock"]


def test_events_of_a_foreign_service_are_left_out_once():
    found = expectation_of(
        [STOCK],
        sent=[],
        received=[
            received("stock", "reserve", "legacy", "placed"),
            received("stock", "reserve", "legacy", "paid"),
            received("stock", "ledger", "legacy", "placed"),
        ],
    )
    assert found.routes == ()
    (sentence,) = found.left_out
    assert "stock has received events of legacy" in sentence


@pytest.mark.parametrize("turn", [1, -1])
def test_order_of_observations_does_not_matter(turn):
    members = [ORDERS, STOCK, MAIL]
    past = [
        received("stock", "reserve", "orders", "placed"),
        received("mail", "notify", "orders", "placed"),
        received("mail", "notify", "stock", "reserved"),
        returned("orders", "refund", "mail", "placed"),
    ]
    wrote = [sent("orders", "placed"), sent("stock", "reserved")]
    once = expectation_of(members, sent=wrote, received=past)
    again = expectation_of(members[::turn], sent=wrote[::turn], received=past[::turn])
    assert again == once


# Observations of earlier runs, and former groups.


def test_observations_of_a_former_group_expect_nothing():
    past = [received("stock", name, "orders", "placed") for name in ("reserve", "mail")]
    former = Member(name="stock", former_groups=(FormerGroup(name="mail"),))
    wrote = [sent("orders", "placed")]
    assert routes([ORDERS, former], wrote, past) == {
        (COMMIT, "orders", "stock", "reserve", "placed")
    }
    assert unexpected([ORDERS, former], wrote, past) == {
        (COMMIT, "orders", "stock", "mail", "placed")
    }


def test_former_group_of_one_type_is_expected_to_get_others():
    past = [received("stock", "mail", "orders", each) for each in ("placed", "paid")]
    former = Member(name="stock", former_groups=(FormerGroup(name="mail", event_type="paid"),))
    assert routes([ORDERS, former], [sent("orders", "placed"), sent("orders", "paid")], past) == {
        (COMMIT, "orders", "stock", "mail", "placed")
    }


def test_type_received_only_by_a_former_group_is_an_obstacle():
    former = Member(name="stock", former_groups=(FormerGroup(name="mail"),))
    past = [received("stock", "mail", "orders", "placed")]
    found = expectation_of([ORDERS, former], sent=[sent("orders", "placed")], received=past)
    assert [upstream for upstream, _ in found.obstacles] == ["orders"]


def test_former_group_compensates_foreign_events_it_applied():
    back = [taken_back("stock", "orders", "placed")]
    past = [
        received("mail", "notify", "orders", "placed"),
        returned("mail", "notify", "stock", "placed", of="orders"),
        returned("orders", "refund", "stock", "placed"),
    ]
    former = Member(name="mail", former_groups=(FormerGroup(name="notify"),))
    for mail in (MAIL, former):
        found = expectation_of([ORDERS, STOCK, mail], sent=back, received=past).routes
        (of_mail,) = (r for r in found if (r.group, r.stream.kind) == ("notify", ROLLBACK))
        assert (of_mail.expected, of_mail.if_applied) == (True, mail is former)
    assert list(expected_by_the_past(found, back, past[:2])) == [], "it is listed already"


def test_expectation_by_the_past_is_reported_once_per_group():
    past = [received("stock", "mail", "orders", "events", each) for each in ("paid", "placed")]
    types = [sent("orders", "events", each) for each in ("paid", "placed")]
    found = expectation_of([ORDERS, STOCK], sent=types, received=past).routes

    (told,) = expected_by_the_past(found, types, past)

    assert told.startswith(
        "the inbox of group mail of stock has nothing of paid (events), placed (events) left"
    )
    assert list(expected_by_the_past(found, types, [])) == []
    assert list(expected_by_the_past(found, [], past)) == []
