"""Types whose events moved to another topic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import (
    ExpectedGroup,
    FormerGroup,
    Member,
    Received,
    Sent,
)
from shieldtx.reconcile.moved_types import SentBetween, moved_types, on_several_topics
from shieldtx.reconcile.routes import expectation_of

ORDERS, STOCK = Member(name="orders"), Member(name="stock")
NOW = datetime(2026, 1, 31, 2, tzinfo=UTC)
OLD, NEW, OTHER, THIRD = (("orders", "placed", topic) for topic in ("old", "new", "other", "third"))


def received(group, topic):
    return Received(
        downstream="stock",
        group=group,
        source="orders",
        kind=TxKind.COMMIT,
        topic=topic,
        event_type="placed",
    )


def followed(past, stock=STOCK, orders=ORDERS):
    sent = [
        Sent(upstream="orders", kind=TxKind.COMMIT, topic=topic, event_type="placed")
        for topic in ("old", "new", "other", "third")
    ]
    members = [orders, stock]
    return on_several_topics(members, expectation_of(members, sent=sent, received=past).routes)


def sent(first, last):
    """Return the span between two ages in hours, of the first and the last event sent."""
    return SentBetween(first=NOW - timedelta(hours=first), last=NOW - timedelta(hours=last))


def told(past, between):
    return list(moved_types(followed(past), between, before=NOW - timedelta(minutes=15)))


MOVED = [received("reserve", "old"), received("reserve", "new"), received("mail", "old")]


@pytest.mark.parametrize(
    "between",
    [
        {OLD: sent(90, 50), NEW: sent(48, 1)},
        # Both topics were used while processes were replaced.
        {OLD: sent(90, 47.5), NEW: sent(48, 1)},
        # The rows of the old topic are purged.
        {NEW: sent(48, 1)},
        # The new release was rolled out over days.
        {OLD: sent(200, 25), NEW: sent(90, 1)},
        {OLD: sent(200, 25), NEW: sent(90, 24.8)},
        # The new release was rolled out this night, with an overlap of less than an hour.
        {OLD: sent(200, 2.5), NEW: sent(3, 1)},
    ],
)
def test_type_moved_to_a_topic_unread_by_a_group_is_reported(between):
    (problem,) = told(MOVED, between)

    assert problem.startswith("placed of orders is sent on new now, and no longer on old: group")
    assert "list old, new in `parallel_topics` of orders" in problem
    assert '"mail: placed" in `former_groups` of stock' in problem


@pytest.mark.parametrize(
    "between",
    [
        # Some events go to the one topic and some to the other.
        {OLD: sent(90, 2), NEW: sent(48, 1)},
        {OLD: sent(90, 0), NEW: sent(0.5, 0.1)},
        {OLD: sent(90, 24), NEW: sent(48, 1)},
        # The group may be about to receive the type.
        {OLD: sent(90, 2), NEW: sent(0.2, 0.1)},
        # The type has moved back.
        {OLD: sent(90, 1), NEW: sent(2, 1.5)},
        {OLD: sent(90, 30), NEW: sent(80, 31)},
        {OLD: sent(90, 50)},
        {},
    ],
)
def test_type_that_has_not_moved_is_not_reported(between):
    assert told(MOVED, between) == []


BOTH = [*MOVED, *(received(group, "other") for group in ("reserve", "mail"))]


@pytest.mark.parametrize(
    "between",
    [
        {OLD: sent(90, 50), NEW: sent(48, 1), OTHER: sent(90, 1)},
        {OLD: sent(90, 50), NEW: sent(48, 1), OTHER: sent(90, 0)},
        {OLD: sent(90, 47.5), NEW: sent(48, 1), OTHER: sent(90, 0)},
        # The new release was rolled out over days.
        {OLD: sent(90, 25), NEW: sent(80, 1), OTHER: sent(70, 0)},
        # No rows of the other topic are kept.
        {OLD: sent(90, 50), NEW: sent(48, 1)},
    ],
)
@pytest.mark.parametrize("parallel", [(), ("old", "other")])
def test_type_moved_from_one_topic_of_a_group_is_reported(between, parallel):
    of = followed(BOTH, orders=Member(name="orders", parallel_topics=parallel))

    (problem,) = moved_types(of, between, before=NOW - timedelta(minutes=15))

    assert problem.startswith("placed of orders is sent on new now, and no longer on old: group")
    assert "mail of stock has received it on old, and never on new." in problem
    assert "list old, new in `parallel_topics` of orders" in problem


@pytest.mark.parametrize(
    "between",
    [
        # The group's other topic goes on, and the new topic is older than the idle one.
        {OLD: sent(80, 50), NEW: sent(90, 1), OTHER: sent(90, 1)},
        {OLD: sent(90, 50), NEW: sent(90, 1), OTHER: sent(90, 0)},
        # The group's idle topic has not been idle for long, and was used concurrently with the new
        # one.
        {OLD: sent(90, 20), NEW: sent(48, 1), OTHER: sent(90, 1)},
        # The new release is being rolled out right now.
        {OLD: sent(90, 0.1), NEW: sent(0.5, 0.1), OTHER: sent(90, 0)},
        # One of two topics is idle, and no topic has begun since.
        {OLD: sent(90, 50), NEW: sent(80, 60), OTHER: sent(90, 1)},
        # No rows are kept of the topic that may have been left.
        {NEW: sent(48, 1), OTHER: sent(90, 1)},
    ],
)
def test_type_continuing_on_a_topic_of_its_group_has_not_moved(between):
    assert told(BOTH, between) == []


@pytest.mark.parametrize(
    ("between", "left"),
    [
        ({OLD: sent(90, 60), NEW: sent(48, 1), OTHER: sent(90, 50)}, "old, other"),
        # Even if the new topic is older: none of the group's topics goes on.
        ({OLD: sent(90, 60), NEW: sent(95, 1), OTHER: sent(90, 50)}, "old, other"),
        ({NEW: sent(48, 1), OTHER: sent(90, 50)}, "other"),
        ({NEW: sent(48, 1)}, "old, other"),
    ],
)
def test_type_that_left_all_topics_of_a_group_is_reported_once(between, left):
    (problem,) = told(BOTH, between)

    assert f"is sent on new now, and no longer on {left}" in problem


def test_each_left_topic_is_reported_with_its_possible_target():
    past = [*MOVED, received("reserve", "other")]
    past += [received(group, "third") for group in ("reserve", "mail")]
    between = {OLD: sent(90, 50), NEW: sent(48, 1), OTHER: sent(20, 1), THIRD: sent(70, 24)}

    problems = list(moved_types(followed(past), between, before=NOW - timedelta(minutes=15)))

    assert [problem.partition(":")[0] for problem in problems] == [
        "placed of orders is sent on new now, and no longer on old",
        "placed of orders is sent on other now, and no longer on old, third",
    ]


@pytest.mark.parametrize(
    "past",
    [
        [*MOVED, received("mail", "new")],
        [received("reserve", "old"), received("mail", "old")],
        [received("reserve", "new"), received("mail", "new")],
    ],
)
def test_group_that_reads_all_read_topics_is_not_checked(past):
    assert followed(past) == []


@pytest.mark.parametrize(
    "stock",
    [
        Member(name="stock", former_groups=(FormerGroup(name="mail", event_type="placed"),)),
        Member(name="stock", groups=(ExpectedGroup(name="mail", topics=("old",)),)),
    ],
)
def test_former_and_named_groups_are_not_checked(stock):
    assert followed(MOVED, stock) == []


@pytest.mark.parametrize(
    ("topics", "others"),
    [
        (("old", "new"), []),
        (("old", "new", "third"), []),
        # A topic that is not listed with them is not parallel.
        (("old", "third"), [("new",)]),
        (("new", "third"), [("new",)]),
        (("placed",), [("new",)]),
        ((), [("new",)]),
    ],
)
def test_type_does_not_move_between_parallel_topics(topics, others):
    orders = Member(name="orders", parallel_topics=topics)

    assert [each.others for each in followed(MOVED, orders=orders)] == others


def test_parallel_topics_are_those_of_the_sender():
    stock = Member(name="stock", parallel_topics=("old", "new"))

    assert [each.others for each in followed(MOVED, stock)] == [("new",)]
