"""Replicas of topics, and a second broker: no topic fails for replicas it cannot have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaAdminClient, TopicPartition

from shieldtx.embedded import EmbeddedKafka
from shieldtx.embedded.free_ports import HOST, free_port

ADMIN_S = 20.0
FIRST, SECOND = 1, 2


@contextmanager
def second_broker(first: EmbeddedKafka, directory: Path) -> Iterator[EmbeddedKafka]:
    """Start a broker that joins the cluster of `first`, whose controller it uses."""
    port = free_port()
    voters = _property(first.directory / "server.properties", "controller.quorum.voters")
    cluster = _property(first.directory / "data" / "meta.properties", "cluster.id")
    data = directory / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text(
        f"version=1\nnode.id={SECOND}\ncluster.id={cluster}\n", encoding="utf-8"
    )
    settings = {
        "process.roles": "broker",
        "node.id": str(SECOND),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{port}",
    }
    with EmbeddedKafka(directory, port=port, settings=settings) as broker:
        yield broker


def replicate(bootstrap: str, topic: str, partitions: int) -> None:
    """Give each partition a replica at the second broker; the first broker stays leader."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        refused = admin.alter_partition_reassignments(
            {TopicPartition(topic, n): [FIRST, SECOND] for n in range(partitions)}
        )
    finally:
        admin.close()
    problems = [error for error in refused.values() if error is not None]
    if problems or len(refused) != partitions:
        raise RuntimeError(f"{topic} gets no replicas: {problems}")


def in_sync(admin: AdminClient, topic: str) -> set[int]:
    """Return the numbers of in-sync replicas of all partitions: one number if they are equal."""
    partitions = admin.list_topics(topic, ADMIN_S).topics[topic].partitions
    return {len(partition.isrs) for partition in partitions.values()}


def ask_for(bootstrap: str, topic: str, replicas: int) -> None:
    """Let the broker refuse records with fewer in-sync replicas than this."""
    entry = ConfigEntry(
        "min.insync.replicas", str(replicas), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    administer(bootstrap, lambda admin: admin.incremental_alter_configs([resource]))


def client(bootstrap: str) -> AdminClient:
    """Make a client that discovers the brokers, and does not log unreachable ones."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def administer(bootstrap: str, ask: Callable[[AdminClient], Mapping[Any, Any]]) -> None:
    """Run an operation at the broker and wait until it ends; raises KafkaException."""
    admin = client(bootstrap)
    for future in ask(admin).values():
        future.result(ADMIN_S)


def _property(file: Path, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}=(.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"{file} does not contain {name}")
    return found[1]
