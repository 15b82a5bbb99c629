"""A cluster in which no consumer group has existed yet."""

from __future__ import annotations

import logging

import pytest

from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection
from shieldtx.embedded import EmbeddedKafka
from tests.support.log_records import logged


def test_new_cluster_has_no_foreign_members(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shieldtx")
    with EmbeddedKafka() as kafka:
        topics = KafkaBroker(KafkaConnection(bootstrap_servers=kafka.bootstrap)).topics()
        try:
            assert not topics.foreign_members("stock")
        finally:
            topics.close()
    assert logged(caplog.records, "group_coordinator_missing") == [{"group": "stock"}]
    assert {record.levelno for record in caplog.records if record.name.startswith("shieldtx")} == {
        logging.INFO
    }
