"""The two servers of all benchmarks, and a new database and topics for each run."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
import psycopg
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.data.events import EVENT_TYPE, SOURCE
from shieldtx import Settings, ShieldTx
from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import TxKind
from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres

PARTITIONS: Final = 8
_TEMPLATE: Final = "bench_template"
_WRITES: Final = 200
_WARM_UP_S: Final = 5.0
_PAGE: Final = b"\0" * 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnvironment:
    """A separate database and a separate prefix of topics."""

    url: str
    """For SQLAlchemy."""
    bootstrap: str
    prefix: str
    servers_cpu: Callable[[], float]
    """Returns the processor time of both servers so far, in seconds."""

    @property
    def dsn(self) -> str:
        """The database's URL for drivers."""
        return self.url.replace("+psycopg", "")

    @property
    def topic(self) -> str:
        """The topic of the events."""
        return physical_topic(self.prefix, EVENT_TYPE, TxKind.COMMIT)

    @property
    def job(self) -> dict[str, Any]:
        """The part of a subject's job that describes this environment."""
        return {
            "url": self.url,
            "dsn": self.dsn,
            "bootstrap": self.bootstrap,
            "prefix": self.prefix,
            "topic": self.topic,
        }

    def connect(self) -> psycopg.Connection:
        """Connect, each statement a separate transaction."""
        return psycopg.connect(self.dsn, autocommit=True)

    def tidy(self) -> None:
        """Do the work of autovacuum and checkpointer before a backlog has grown."""
        with self.connect() as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def wal(self) -> int:
        """Return how many bytes the server has written to its log."""
        with self.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def costs(self) -> dict[str, float]:
        """Return the servers' costs so far, for a sample."""
        return {"wal": self.wal(), "servers_cpu": self.servers_cpu()}


class Servers:
    """PostgreSQL and Apache Kafka, started once; durable, with their default settings."""

    def __init__(self) -> None:
        # The clock of the latency figures is that of the commits themselves.
        self._postgres = EmbeddedPostgres(settings={"track_commit_timestamp": "on"})
        self._kafka = EmbeddedKafka()

    def __enter__(self) -> Self:
        self._postgres.start()
        try:
            self._kafka.start()
            self._make_template()
            self._warm_kafka()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kafka.close()
        self._postgres.close()

    @contextmanager
    def place(self, *, tables: bool = True) -> Iterator[RunEnvironment]:
        """Create a database, with shieldtx's tables or none, and topics, until a block's end."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        self._postgres.create_database(name, template=_TEMPLATE if tables else "template1")
        place = RunEnvironment(
            url=self._postgres.url(name),
            bootstrap=self._kafka.bootstrap,
            prefix=f"{name}.",
            servers_cpu=self._cpu,
        )
        topics = [physical_topic(place.prefix, EVENT_TYPE, kind) for kind in TxKind]
        try:
            self.create_topics(topics)
            yield place
        finally:
            self.delete_topics(topics)
            self._postgres.drop_database(name)

    def create_topics(self, names: list[str]) -> None:
        """Create topics and wait until they can be used."""
        admin = self._admin()
        made = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
        for future in made.values():
            future.result()
        deadline = time.monotonic() + 10
        while not set(names) <= admin.list_topics(timeout=10).topics.keys():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the topics {names} were created and are not there")

    def delete_topics(self, names: list[str]) -> None:
        """Delete topics to free their space on disk."""
        admin = self._admin()  # kept: its responses need it
        for future in admin.delete_topics(names).values():
            future.result()

    def fdatasync_us(self) -> float:
        """Return how long the database's disk takes to make a page durable: the median, in µs."""
        return fdatasync_us(self._postgres.directory)

    def version(self) -> str:
        """Return PostgreSQL's version."""
        with psycopg.connect(self._postgres.url("postgres").replace("+psycopg", "")) as connection:
            return str(connection.execute("SHOW server_version").fetchone()[0])  # type: ignore[index]

    def _cpu(self) -> float:
        postmaster = psutil.Process(self._postgres.pid)
        used = postmaster.cpu_times()
        # The parent of ended sessions counts their time.
        seconds = used.user + used.system + used.children_user + used.children_system
        for process in (*postmaster.children(recursive=True), psutil.Process(self._kafka.pid)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system
        return float(seconds)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._kafka.bootstrap, "log_level": 3})

    def _warm_kafka(self) -> None:
        """Let the broker compile its code for publishing, which would slow the first figures."""
        topic = "bench.warm-up"
        self.create_topics([topic])
        try:
            producer = Producer({"bootstrap.servers": self._kafka.bootstrap, "acks": "all"})
            end = time.monotonic() + _WARM_UP_S
            while time.monotonic() < end:
                producer.produce(topic, b"x" * 200, on_delivery=_raise_failure)
                if producer.flush(10):
                    raise TimeoutError("Kafka has not acknowledged a record within 10 s")
        finally:
            self.delete_topics([topic])

    def _make_template(self) -> None:
        self._postgres.create_database(_TEMPLATE)
        shield = ShieldTx(Settings(source=SOURCE, database_url=self._postgres.url(_TEMPLATE)))
        shield.schema.upgrade()
        shield.close()
        with psycopg.connect(self._postgres.url(_TEMPLATE).replace("+psycopg", "")) as connection:
            connection.execute(_BUSINESS_TABLES)


def _raise_failure(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


_BUSINESS_TABLES: Final = """
CREATE TABLE bench_order (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text NOT NULL,
    n bigint NOT NULL
);
CREATE TABLE bench_effect (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text NOT NULL,
    n bigint NOT NULL
);
"""


def fdatasync_us(directory: Path) -> float:
    """Return how long a page takes to become durable in a directory: the median, in µs."""
    path = directory / "fdatasync"
    times = []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for _ in range(_WRITES):
            os.pwrite(descriptor, _PAGE, 0)
            began = time.perf_counter()
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(times) * 1e6
