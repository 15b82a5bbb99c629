"""Tests of which topics without an outbox row are read, by the answers of a broker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from shieldtx.errors import BrokerError, BrokerUnavailable
from shieldtx.reconcile.expectations import Others
from shieldtx.reconcile.observed import ObservedTopic, ObservedTopics
from shieldtx.reconcile.request import BrokerAccess, ReconcileRequest, ServiceDatabase
from spark.sources.topics_without_rows import TopicsWithoutRows, topics_without_rows


class Broker:
    """Has some topics, and refuses to report whether it has some others."""

    def __init__(self, *topics: str, refused: Collection[str] = ()) -> None:
        self.topics = topics
        self.refused = refused
        self.asked: list[Sequence[str]] = []

    def existing(self, topics: Sequence[str]) -> frozenset[str]:
        self.asked.append(topics)
        for topic in topics:
            if topic in self.refused:
                raise BrokerError(f"{topic}: not authorised")
        return frozenset({*topics} & {*self.topics})


def found(
    broker: Broker,
    *earlier: str,
    others: tuple[str, ...] = (),
    cluster: str = "one",
    writers: tuple[str, ...] = (),
) -> TopicsWithoutRows:
    met = ObservedTopic(topic_id="1", ends={0: 5}, writers=frozenset(writers))
    service = ServiceDatabase(name="orders", url="postgresql://none", others=Others.named(*others))
    request = ReconcileRequest(
        services=(service,),
        folder=Path("nowhere"),
        broker=BrokerAccess(bootstrap="kafka:9092", topic_prefix="t."),
        topics_before=ObservedTopics(cluster="one", topics=dict.fromkeys(earlier, met)),
    )
    return topics_without_rows(broker, request, with_rows={"t.placed.commit"}, cluster=cluster)


def logs(found_: TopicsWithoutRows) -> set[tuple[str, str, str]]:
    return {(log.topic, log.kind, log.name) for log in found_.logs}


def test_topics_of_earlier_runs_are_read_and_known_not_asked_for():
    broker = Broker("t.placed.commit", "t.paid.rollback")

    told = found(broker, "t.placed.commit", "t.paid.rollback")

    assert logs(told) == {("paid", "ROLLBACK", "t.paid.rollback")}
    assert (told.obstacles, broker.asked) == ((), [["t.paid.rollback"]])


def test_topics_for_others_are_read_where_there_are_any():
    broker = Broker("t.audited.commit", refused=("t.noted.commit", "t.noted.rollback"))

    told = found(broker, others=("audited", "noted", "none", "no such name!", "n" * 250))

    assert logs(told) == {("audited", "COMMIT", "t.audited.commit")}
    assert told == TopicsWithoutRows(logs=told.logs)
    assert not any("!" in name or len(name) > 249 for names in broker.asked for name in names)


def test_broker_is_asked_topic_by_topic_only_after_a_refusal():
    topics = "t.audited.commit", "t.audited.rollback", "t.paid.commit"
    for refused, number in ((), 1), (("t.audited.rollback",), 4):
        broker = Broker(*topics, refused=refused)

        told = found(broker, "t.paid.commit", others=("audited",))

        assert {log.name for log in told.logs} == {*topics} - {*refused}
        assert (len(broker.asked), told.obstacles) == (number, ())


def test_hidden_topic_of_earlier_runs_prevents_a_clean_run():
    told = found(Broker(refused=("t.paid.commit",)), "t.paid.commit")

    (problem,) = told.obstacles
    assert problem.startswith("topic t.paid.commit, which an earlier run has read, could not be re")
    assert (told.logs, told.gone) == ((), frozenset())


@pytest.mark.parametrize("is_there", [True, False])
def test_topic_of_removed_services_is_not_asked_for(is_there):
    broker = Broker(*["t.paid.commit"] * is_there, refused=("t.paid.commit",))

    told = found(broker, "t.paid.commit", writers=("mail", "crm"))

    assert told == TopicsWithoutRows()
    assert not any(broker.asked)
    assert len(found(broker, "t.paid.commit", writers=("mail", "orders")).obstacles) == 1


def test_topic_for_others_with_an_earlier_writer_is_read():
    broker = Broker("t.audited.commit")

    told = found(broker, "t.audited.commit", writers=("mail",), others=("audited",))

    assert logs(told) == {("audited", "COMMIT", "t.audited.commit")}


@pytest.mark.parametrize(("cluster", "number"), [("one", 1), ("two", 0)])
def test_missing_topic_is_reported_unless_the_cluster_changed(cluster, number):
    told = found(Broker(), "t.paid.commit", cluster=cluster)

    assert told.gone == {"t.paid.commit"}
    assert len(told.obstacles) == number


def test_topic_of_an_unreachable_broker_is_not_missing():
    class Unreachable(Broker):
        def existing(self, topics: Sequence[str]) -> frozenset[str]:
            raise BrokerUnavailable(f"asked for {topics}")

    for given in ({"others": ("audited",)}, {}):
        with pytest.raises(BrokerUnavailable):
            found(Unreachable(), *([] if given else ["t.paid.commit"]), **given)
