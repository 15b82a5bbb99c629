"""Records of fifty megabytes and more: parked whole, in bounded memory, without blocking others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection
from shieldtx.embedded import EmbeddedKafka
from shieldtx.testing.memory_broker import MemoryBroker
from tests.robustness.cases import event_of, record_of
from tests.robustness.conftest import Make
from tests.support.project import ROOT
from tests.support.service import Service

MB = 1_000_000
OWN_MB = 150
"""The memory of the process without records."""


def produce(kafka: EmbeddedKafka, topic: str, *, compression: str, value: bytes | None) -> None:
    """Send a good record; `value` replaces its value."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "message.max.bytes": 200 * MB,
            "compression.type": compression,
        }
    )
    record = record_of(event_of(uuid.uuid4().hex), "")
    producer.produce(topic, value or record.value, record.key, 0, headers=list(record.headers))
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def generous() -> Iterator[EmbeddedKafka]:
    """A broker that accepts records of up to 200 MB."""
    limits = {"message.max.bytes": str(200 * MB), "socket.request.max.bytes": str(300 * MB)}
    with EmbeddedKafka(settings=limits) as broker:
        yield broker


def test_record_above_the_client_limit_is_parked_whole(
    generous: EmbeddedKafka, make_service: Make
) -> None:
    _assert_parked(generous, make_service, size=110 * MB, copies=6, compression="none")


def test_record_compressed_below_broker_limits_is_parked_whole(
    kafka: EmbeddedKafka, make_service: Make
) -> None:
    _assert_parked(kafka, make_service, size=50 * MB, copies=18, compression="gzip")


def _assert_parked(
    kafka: EmbeddedKafka, make_service: Make, *, size: int, copies: int, compression: str
) -> None:
    """Assert effects of the good records before and after a large one, and at most `copies` in
    memory.

    The client by itself has about four at a time, and a dozen of a record that it decompresses.
    """
    prefix = f"{uuid.uuid4().hex[:12]}."
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    service = make_service("stock", KafkaBroker(connection), topic_prefix=prefix)
    topic = f"{prefix}orders.placed.commit"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result()
    large = b'"' + b"x" * size + b'"'
    for value in (None, large, None):
        produce(kafka, topic, compression=compression, value=value)

    done, memory = measured(
        service,
        "consume",
        f"{prefix}stock",
        "--once",
        SHIELDTX_KAFKA_BOOTSTRAP=kafka.bootstrap,
        SHIELDTX_APP="tests.robustness.shop:shield",
        SHOP_GROUP=f"{prefix}stock",
    )

    counts = json.loads(done.stdout)
    assert (counts["records"], counts["fresh"], counts["applied"], counts["parked"]) == (3, 2, 2, 1)
    place = f"group={prefix}stock topic={topic} partition=0 offset=1"
    logged = f'{place} reason="value: {len(large)} bytes, the limit is '
    assert f"action=record_parked {logged}16777216" in done.stderr
    assert memory < OWN_MB * MB + copies * size
    assert len(service.effects()) == 2
    [letter] = service.app.stores.dead_letters().parked(limit=9)
    assert letter.record.value == large


def test_list_of_large_parked_records_takes_little_memory(
    make_service: Make,
) -> None:
    service = make_service("stock", MemoryBroker())
    service.execute(
        "INSERT INTO shield_parked SELECT 'stock', 't.commit', 0, n, 'too large', 'key', "
        "decode(repeat('00', 20000000), 'hex'), '[]', now() FROM generate_series(1, 15) n"
    )
    done, memory = measured(service, "dead", "list")
    entries = json.loads(done.stdout)
    assert [(e["key"], e["reason"]) for e in entries] == [("key", "too large")] * 15
    assert memory < (OWN_MB + 50) * MB


def measured(
    service: Service, *words: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a command that has to succeed; return its result, and its peak memory in bytes."""
    settings = service.app.settings
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words, "--json"],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "SHIELDTX_SOURCE": settings.source,
            "SHIELDTX_DATABASE_URL": settings.url.render_as_string(hide_password=False),
            "SHIELDTX_SHARDS": str(settings.shards),
            "SHIELDTX_TOPIC_PREFIX": settings.topic_prefix,
        }
        | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done, int(done.stderr.splitlines()[-1]) * 1024


MEASURED = """
import atexit, pathlib, sys
from shieldtx.cli import main

def tell() -> None:
    # Unlike getrusage, this forgets how large the process was that this one was forked from.
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("VmHWM")), file=sys.stderr)

atexit.register(tell)
main()
"""
"""The program, which prints its peak memory in kilobytes when it exits."""
