"""The services that have written to the topics of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Others, Sent
from shieldtx.reconcile.observed import ObservedTopic, ObservedTopics
from shieldtx.reconcile.request import BrokerAccess, ReconcileRequest, ServiceDatabase
from shieldtx.reconcile.topic_writers import with_writers


def topics(writers: Mapping[str, set[str]]) -> ObservedTopics:
    """Return topics to which these services have written."""
    return ObservedTopics(
        cluster="one",
        topics={
            name: ObservedTopic(topic_id=name, ends={0: 5}, writers=frozenset(services))
            for name, services in writers.items()
        },
    )


def request(before: ObservedTopics, *others: str) -> ReconcileRequest:
    orders = ServiceDatabase(name="orders", url="postgresql://none", others=Others.named(*others))
    return ReconcileRequest(
        services=(orders,),
        folder=Path("nowhere"),
        broker=BrokerAccess(bootstrap="kafka:9092", topic_prefix="t."),
        topics_before=before,
    )


def sent(topic: str, by: str, kind: TxKind = TxKind.COMMIT) -> Sent:
    return Sent(upstream=by, kind=kind, topic=topic, event_type="placed")


def test_topic_writers_are_the_services_with_rows_of_it() -> None:
    read = topics({"t.placed.commit": set(), "t.placed.rollback": set(), "t.other.commit": set()})
    rows = [sent("placed", "orders"), sent("placed", "stock", TxKind.ROLLBACK)]

    assert with_writers(read, [*rows, sent("unread", "orders")], request(ObservedTopics())) == (
        topics(
            {
                "t.placed.commit": {"orders"},
                "t.placed.rollback": {"stock"},
                "t.other.commit": set(),
            }
        )
    )


def test_topic_writers_are_remembered_after_the_purge() -> None:
    before = topics({"t.placed.commit": {"orders"}, "t.gone.commit": {"orders"}})
    read = topics({"t.placed.commit": set()})

    assert with_writers(read, [sent("placed", "stock")], request(before)) == topics(
        {"t.placed.commit": {"orders", "stock"}}
    )


def test_topic_for_others_is_of_the_service_that_names_it() -> None:
    read = topics({"t.audited.commit": set()})

    assert with_writers(read, [], request(ObservedTopics(), "audited")) == topics(
        {"t.audited.commit": {"orders"}}
    )


def test_topic_that_does_not_exist_stays_missing() -> None:
    read = ObservedTopics(topics={"t.placed.commit": None})

    assert with_writers(read, [sent("placed", "orders")], request(ObservedTopics())) == read
