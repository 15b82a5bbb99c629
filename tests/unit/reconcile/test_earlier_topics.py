"""The topics that a run reads because earlier runs have read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shieldtx.reconcile.basis import Basis, basis_of
from shieldtx.reconcile.earlier_topics import topics_before
from shieldtx.reconcile.observed import Observed, ObservedTopic, ObservedTopics
from shieldtx.reconcile.request import BrokerAccess, ReconcileRequest, ServiceDatabase

BROKER = BrokerAccess(bootstrap="kafka:9092", topic_prefix="t.")
PLACED = ObservedTopics(
    cluster="one", topics={"t.placed.commit": ObservedTopic(topic_id="1", ends={0: 5})}
)
PAID = ObservedTopics(
    cluster="one", topics={"t.paid.commit": ObservedTopic(topic_id="2", ends={0: 7})}
)


def judged(*names: str, broker: BrokerAccess | None = BROKER) -> Basis:
    services = tuple(
        ServiceDatabase(name=name, url="postgresql://ann@db/x") for name in names or ("orders",)
    )
    request = ReconcileRequest(services=services, folder=Path("unused"), broker=broker)
    return basis_of(request, {})


def ran(topics: ObservedTopics, of: Basis | None = None) -> Basis:
    return replace(of or judged(), observed=Observed(topics=topics))


def test_topics_are_those_of_the_latest_run_that_read_topics() -> None:
    assert topics_before([], judged()) == ObservedTopics()
    assert topics_before([ran(PAID), ran(PLACED)], judged()) == PAID


@pytest.mark.parametrize(
    "later",
    [
        None,
        judged(),
        ran(ObservedTopics()),
        ran(PAID, judged(broker=None)),
        ran(PAID, judged(broker=replace(BROKER, topic_prefix="other."))),
        ran(PAID, judged("crm")),
    ],
)
def test_run_of_other_topics_or_of_none_is_ignored(later: Basis | None) -> None:
    assert topics_before([later, ran(PLACED)], judged()) == PLACED


def test_new_broker_address_or_services_keep_the_topics() -> None:
    now = judged("orders", "stock", broker=replace(BROKER, bootstrap="kafka-2:9092"))

    assert topics_before([ran(PLACED)], now) == PLACED


def test_run_without_topics_requests_none() -> None:
    assert topics_before([ran(PLACED)], judged(broker=None)) == ObservedTopics()
