"""The observations of a run, and those after which the next run judges everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Member, Received
from shieldtx.reconcile.observed import (
    Observed,
    ObservedTopic,
    ObservedTopics,
    Past,
    decisive,
    received_first,
    remembered,
    topics_replaced,
)

PLACED = Received(
    downstream="stock",
    group="reserve",
    source="orders",
    kind=TxKind.COMMIT,
    topic="orders.placed",
    event_type="orders.placed",
)
TAKEN_BACK = replace(PLACED, kind=TxKind.ROLLBACK, causation_source="stock")
TOPICS = ObservedTopics(
    cluster="c1", topics={"t.orders": ObservedTopic(topic_id="id1", ends={0: 7, 1: 0})}
)


def members(*groups: ExpectedGroup) -> list[Member]:
    return [Member(name="orders"), Member(name="stock", groups=groups or None)]


def test_received_types_are_decisive_without_declared_groups() -> None:
    seen = [TAKEN_BACK, PLACED, PLACED, replace(PLACED, source="bank")]
    declared = ExpectedGroup(name="reserve", topics=("orders.placed",))

    assert set(decisive(members(), seen)) == {PLACED, TAKEN_BACK}
    assert decisive(members(declared), seen) == (TAKEN_BACK,)
    assert decisive(members(), seen) == decisive(members(), seen[::-1])


@pytest.mark.parametrize(
    "changed", [{"group": "audit"}, {"source": "mail"}, {"topic": "x"}, {"event_type": "x"}]
)
def test_first_reception_of_a_type_by_a_group_is_reported(changed: dict[str, Any]) -> None:
    new = replace(PLACED, **changed)

    (told,) = received_first(Observed(received=(PLACED,)), [PLACED, new])

    assert told == (
        f"group {new.group} of stock received {new.event_type} ({new.topic}, COMMIT) of "
        f"{new.source} for the first time, so that earlier ones are expected there too"
    )


def test_first_group_with_rollbacks_of_a_type_is_not_reported() -> None:
    another = replace(TAKEN_BACK, group="audit")

    assert list(received_first(Observed(received=(PLACED,)), [PLACED, TAKEN_BACK, another])) == []
    assert len(list(received_first(Observed(received=(TAKEN_BACK,)), [TAKEN_BACK, another]))) == 1


OF_ORDERS = replace(TAKEN_BACK, source="mail", causation_source="orders")


def test_first_group_with_foreign_rollbacks_is_reported() -> None:
    """No such group was expected: earlier rollbacks may not have arrived there."""
    known = Observed(received=(PLACED, TAKEN_BACK))
    elsewhere = replace(OF_ORDERS, source="bank")

    assert len(list(received_first(known, [PLACED, TAKEN_BACK, OF_ORDERS]))) == 1
    known = Observed(received=(PLACED, OF_ORDERS))
    assert list(received_first(known, [PLACED, OF_ORDERS, elsewhere])) == []
    assert len(list(received_first(known, [replace(OF_ORDERS, group="audit")]))) == 1


def test_foreign_rollbacks_are_decisive_without_declarations() -> None:
    mail, own = Member(name="mail"), ExpectedGroup(name="undo", kind=TxKind.ROLLBACK)
    of_others = replace(own, of_others=True)
    seen = [TAKEN_BACK, OF_ORDERS, replace(OF_ORDERS, causation_source="bank")]
    seen = [replace(each, source="mail") for each in seen]

    assert set(decisive([*members(), mail], seen)) == {seen[0], seen[1]}
    assert decisive([*members(own), mail], seen) == ()
    assert decisive([*members(of_others), mail], seen) == (seen[0],)


def test_type_that_is_no_longer_received_is_not_reported() -> None:
    assert list(received_first(Observed(received=(PLACED, TAKEN_BACK)), [PLACED])) == []


def ending(partitions: dict[int, int], **changed: Any) -> ObservedTopics:
    topic = {"topic_id": "id1", "ends": partitions} | changed
    return replace(TOPICS, topics={"t.orders": ObservedTopic(**topic)})


@pytest.mark.parametrize(
    "now",
    [
        TOPICS,
        ending({0: 9, 1: 1, 2: 5}),
        replace(TOPICS, topics={**TOPICS.topics, "t.new": ObservedTopic(topic_id="x", ends={})}),
    ],
)
def test_topics_that_have_grown_are_the_same(now: ObservedTopics) -> None:
    assert list(topics_replaced(TOPICS, now)) == []


def test_topics_of_other_services_alone_are_left_out() -> None:
    def by(*services: str) -> ObservedTopic:
        return ObservedTopic(topic_id="x", ends={}, writers=frozenset(services))

    ours = {"unknown": by(), "gone": None, "both": by("orders", "mail")}
    topics = ObservedTopics(cluster="c1", topics={**ours, "theirs": by("mail", "crm")})

    assert topics.of_services(["orders", "stock"]) == ObservedTopics(cluster="c1", topics=ours)


def shorter(end: int) -> str:
    return (
        f"partition 0 of topic t.orders ends at offset {end}, and ended at 7 in the last good run: "
        "records were lost"
    )


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (replace(TOPICS, cluster="c2"), "the topics are in another Kafka cluster"),
        (replace(TOPICS, topics={}), "topic t.orders does not exist any more"),
        (replace(TOPICS, topics={"t.orders": None}), "topic t.orders does not exist any more"),
        (ending({0: 9, 1: 9}, topic_id="id2"), "topic t.orders was deleted and created again"),
        (
            ending({0: 6, 1: 0}),
            shorter(6),
        ),
        (
            ending({1: 0}),
            shorter(0),
        ),
    ],
)
def test_topics_that_may_have_lost_records_are_reported(now: ObservedTopics, told: str) -> None:
    assert list(topics_replaced(TOPICS, now)) == [told]


def test_remembered_types_do_not_count_for_named_groups() -> None:
    """They do not count for former groups either."""
    past = Past(received=(PLACED, TAKEN_BACK, replace(PLACED, group="mail")))
    named = ExpectedGroup(name="reserve", topics=("orders.placed",))
    former = Member(name="stock", former_groups=(FormerGroup(name="mail"),))

    assert set(remembered(members(), past)) == set(past.received)
    assert remembered(members(named), past) == (TAKEN_BACK,)
    assert set(remembered([Member(name="orders"), former], past)) == {PLACED, TAKEN_BACK}


def test_foreign_rollbacks_of_a_former_group_are_remembered() -> None:
    of_shop = replace(TAKEN_BACK, downstream="stock", group="mail", causation_source="orders")
    own = replace(of_shop, causation_source="stock")
    past = Past(received=(replace(PLACED, group="mail"), of_shop, own))
    former = Member(name="stock", former_groups=(FormerGroup(name="mail"),))

    assert remembered([Member(name="orders"), former], past) == (of_shop,)
