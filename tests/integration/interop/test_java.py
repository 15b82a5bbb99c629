"""Services in Java: their CloudEvents reach a handler, and they read the records of shieldtx."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest

from shieldtx import Event
from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection
from shieldtx.domain.external_ids import event_id_of
from shieldtx.embedded import EmbeddedKafka
from shieldtx.embedded.jars import fetch_kafka
from tests.support.migrated_databases import MigratedDatabases
from tests.support.service import SHARDS, Service, effect, make_topics

COUNT = 20
PARTITIONS = 6
LONGEST_S = 120
# PySpark's compiler of Java source: a Java runtime has none.
_COMPILER = "org.codehaus.commons.compiler.AbstractJavaSourceClassLoader"


def java(*arguments: str) -> list[list[str]]:
    """Run the program in Java, and return the fields of each line that it prints."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin/java")) if home else "java"
    jars = [Path(pyspark.__file__).parent / "jars" / f"{name}-*.jar" for name in _JANINO]
    found = [str(jar) for pattern in jars for jar in pattern.parent.glob(pattern.name)]
    classes = os.pathsep.join([*found, f"{fetch_kafka()}/*"])
    options = ["-Dfile.encoding=UTF-8", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    source = ["-sourcepath", str(Path(__file__).parent), "-encoding", "UTF-8"]
    done = subprocess.run(
        [command, *options, "-cp", classes, _COMPILER, *source, "CloudEventsProgram", *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


_JANINO = ("janino", "commons-compiler")


@pytest.fixture
def service(databases: MigratedDatabases, kafka: EmbeddedKafka) -> Iterator[Service]:
    prefix = f"{uuid.uuid4().hex[:12]}."
    broker = KafkaBroker(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    with ExitStack() as closing:
        url = closing.enter_context(databases.database(SHARDS))
        made = Service("stock", url, broker, migrated=True, topic_prefix=prefix)
        closing.callback(made.close)
        yield made


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_events_of_a_java_producer_are_handled(
    service: Service, kafka: EmbeddedKafka, mode: str
) -> None:
    seen: dict[str | None, Any] = {}

    def reserve(session: Any, event: Event) -> None:
        seen[event.external_id] = event.payload
        effect("reserved")(session, event)

    group = service.app.settings.topic_prefix + "stock"
    service.app.consumer(group).handles("orders.placed")(reserve)
    make_topics(service, partitions=PARTITIONS)
    topic = f"{service.app.settings.topic_prefix}orders.placed.commit"
    sent = java("produce", kafka.bootstrap, topic, str(COUNT), mode)
    assert len(sent) == COUNT
    consumer = service.app.build_consumer(group)
    while consumer.run_once().more or not consumer.has_caught_up():
        continue
    assert seen == {f"J-{n}": {"number": n, "amount": 12.5} for n in range(COUNT)}
    rows = service.rows("SELECT event_id, key FROM effects")
    expected = {(str(event_id_of("/java", f"J-{n}")), f"Schlüssel-{n}") for n in range(COUNT)}
    assert set(rows) == expected
    assert len(rows) == COUNT
    digits = service.rows("SELECT DISTINCT payload LIKE '%12.50}' FROM shield_inbox")
    assert digits == [(True,)]


def test_java_reads_records_where_its_own_producer_puts_them(
    service: Service, kafka: EmbeddedKafka, add_events: Callable[[Service], list[str]]
) -> None:
    ids = add_events(service)
    topic = f"{service.app.settings.topic_prefix}orders.placed.commit"
    read = java("consume", kafka.bootstrap, topic, str(COUNT))
    assert sorted(fields[2] for fields in read) == sorted(ids)
    assert {tuple(fields[3:5]) for fields in read} == {("orders.placed", "stock")}
    by_id = {fields[2]: int(fields[1]) for fields in read}
    written = [by_id[event_id] for event_id in ids]
    # The same keys, by the partitioner of Kafka's client.
    other = f"{topic}.java"
    admin = service.app.broker.topics()
    admin.create([other], partitions=PARTITIONS, replication=1)
    admin.close()
    sent = java("produce", kafka.bootstrap, other, str(COUNT), "binary")
    assert written == [int(partition) for _, _, partition in sent]
    assert len(set(written)) > 1


@pytest.fixture
def add_events() -> Callable[[Service], list[str]]:
    def add(service: Service) -> list[str]:
        service.app.declare("orders.placed")
        make_topics(service, partitions=PARTITIONS)
        ids = []
        with service.transaction() as session:
            for number in range(COUNT):
                event = Event(
                    type="orders.placed", payload={"number": number}, key=f"Schlüssel-{number}"
                )
                service.app.outbox.add(session, event)
                ids.append(str(event.id))
        relay = service.relay()
        while relay.run_once().backlog:
            continue
        assert service.outbox() == {"PROCESSED": COUNT}
        return ids

    return add
