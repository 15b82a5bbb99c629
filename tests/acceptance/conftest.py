"""The command line as separate processes, on two services with real servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from shieldtx import Event, Settings, ShieldTx
from shieldtx.brokers.kafka.broker import KafkaConnection, KafkaTopics
from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from shieldtx.embedded.child_process import ChildProcess
from shieldtx.store.schema_settings import DEFAULT_SHARDS
from tests.acceptance import forked
from tests.acceptance.shop import GATE
from tests.support.migrated_databases import MigratedDatabases

HERE = Path(__file__).parent
SHIELDTX = [sys.executable, "-c", "from shieldtx.cli import main; main()"]

# Short, for quick takeovers; long enough for a busy machine.
LEASE_S = 5
SEND_TIMEOUT_S = 3


@dataclass(frozen=True, kw_only=True)
class Result:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Parse the standard output, which must be JSON and nothing else."""
        return json.loads(self.out)


@dataclass(kw_only=True)
class Service:
    """One of the two services: its database, its environment, and its processes."""

    name: str
    url: str
    environment: dict[str, str]
    folder: Path
    tables: Sequence[str]
    """The service's own tables, each as the text after CREATE TABLE."""
    engine: Engine = field(init=False)
    running: list[ChildProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        # NullPool closes a released connection: databases are dropped, and locks are counted.
        self.engine = create_engine(self.url, poolclass=NullPool)

    @property
    def database(self) -> str:
        """Return the name of the database."""
        return self.engine.url.database or ""

    def make_tables(self) -> None:
        """Create the service's own tables."""
        for table in self.tables:
            self.execute(f"CREATE TABLE {table}")

    def run(
        self,
        *words: str,
        answer: str = "",
        app: bool = True,
        anew: bool = False,
        **environment: str,
    ) -> Result:
        """Run a command until it exits; with `anew`, in a Python that has imported nothing yet."""
        environment = self._environment(environment, app=app)
        if anew:
            done = subprocess.run(
                [*SHIELDTX, *words],
                env=environment,
                cwd=HERE,
                capture_output=True,
                text=True,
                timeout=forked.TIMEOUT_S,
                check=False,
            )
            return Result(status=done.returncode, out=done.stdout, err=done.stderr)
        files = [self.folder / name for name in ("stdin", "stdout", "stderr")]
        for file, text_before in zip(files, (answer, "", ""), strict=True):
            file.write_text(text_before)
        status = forked.run(words, environment=environment, folder=HERE, files=files)
        return Result(status=status, out=files[1].read_text(), err=files[2].read_text())

    def ok(self, *words: str, **environment: str) -> Result:
        """Run a command that has to succeed."""
        result = self.run(*words, **environment)
        assert result.status == 0, result
        return result

    def start(self, *words: str, **environment: str) -> ChildProcess:
        """Start a worker and wait until it reports that it is ready."""
        worker = self.launch(*words, **environment)
        worker.await_ready(lambda: is_ready(worker), within=30)
        return worker

    def launch(self, *words: str, **environment: str) -> ChildProcess:
        """Start a worker."""
        worker = ChildProcess.start(
            [*SHIELDTX, *words],
            name=f"shieldtx {' '.join(words)} of {self.name}",
            log=self.folder / f"{self.name}-{len(self.running)}.log",
            environment=self._environment(environment, app=True),
            directory=HERE,
        )
        self.running.append(worker)
        return worker

    def end(self) -> None:
        """Kill the workers that still run."""
        for worker in self.running:
            worker.kill()
        self.engine.dispose()

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Query the database and return the rows."""
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement), parameters)]

    def one(self, statement: str, **parameters: Any) -> Any:
        """Query the database and return one value."""
        ((value,),) = self.rows(statement, **parameters)
        return value

    def execute(self, statement: str, **parameters: Any) -> None:
        """Run a statement in the database, in a transaction of its own."""
        with self.engine.begin() as connection:
            connection.execute(text(statement), parameters)

    def outbox(self) -> dict[str, int]:
        """Return how many outbox rows are in each state."""
        return dict(self.rows("SELECT status, count(*) FROM shield_outbox GROUP BY 1"))

    def inbox(self) -> dict[str, int]:
        """Return how many inbox rows are in each state."""
        return dict(self.rows("SELECT status, count(*) FROM shield_inbox GROUP BY 1"))

    def shards_by_owner(self) -> dict[str | None, int]:
        """Return how many shards each relay owns by a lease that has not expired."""
        return dict(
            self.rows(
                "SELECT CASE WHEN lease_until > now() THEN owner END, count(*) "
                "FROM shield_shard GROUP BY 1"
            )
        )

    def _environment(self, more: dict[str, str], *, app: bool) -> dict[str, str]:
        # Settings of this process are left out; those of Python stay, to find its packages.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SHIELDTX_")}
        own = {k: v for k, v in self.environment.items() if app or k != "SHIELDTX_APP"}
        return inherited | own | more


@dataclass(frozen=True, kw_only=True)
class Shop:
    """Two services that exchange events."""

    databases: MigratedDatabases
    orders: Service
    stock: Service
    kafka: EmbeddedKafka
    prefix: str
    writer: ShieldTx

    def place(
        self, numbers: Sequence[int], *, quantity: int = 1, note: str = "", key: str | None = None
    ) -> None:
        """Place orders in one transaction; their events have four keys unless `key` is given."""
        with Session(self.writer.engine) as session, session.begin():
            for number in numbers:
                session.execute(text("INSERT INTO placed VALUES (:n)"), {"n": number})
                payload = {"number": number, "quantity": quantity, "note": note}
                event = Event(type="orders.placed", payload=payload, key=key or f"k{number % 4}")
                self.writer.outbox.add(session, event)

    def migrate(self) -> None:
        """Create the tables and the topics of both services, before any event is written."""
        for service in (self.orders, self.stock):
            self.databases.replace(service.database, DEFAULT_SHARDS)
            service.make_tables()
        topics = KafkaTopics(KafkaConnection(bootstrap_servers=self.kafka.bootstrap))
        topics.create(self.writer.topics(), partitions=2, replication=1)
        topics.close()

    def records(self, kind: str = "commit") -> list[tuple[str, int]]:
        """Read a whole topic and return keys and order numbers, in order per partition."""
        consumer = KafkaConsumer(bootstrap_servers=self.kafka.bootstrap, consumer_timeout_ms=10_000)
        topic = f"{self.prefix}orders.placed.{kind}"
        places = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        left = sum(consumer.end_offsets(places).values())
        found: list[tuple[str, int]] = []
        while len(found) < left:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [(r.key.decode(), json.loads(r.value).get("number")) for r in records]
        consumer.close(autocommit=False)
        return found

    def reserved(self) -> list[tuple[str, int]]:
        """Return the effects of the stock service, in the order in which they were made."""
        return [(k, n) for k, n in self.stock.rows("SELECT key, number FROM reserved ORDER BY id")]

    @contextmanager
    def closed_gate(self) -> Iterator[None]:
        """Block the handlers of the stock service inside their transactions."""
        with self.stock.engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:gate)"), {"gate": GATE})
            yield

    def handlers_at_the_gate(self) -> int:
        """Return how many handlers are blocked."""
        return int(
            self.stock.one(
                "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
                "WHERE locktype = 'advisory' AND objid = :gate AND NOT granted "
                "AND datname = current_database()",
                gate=GATE,
            )
        )


@pytest.fixture
def shop(
    postgres: EmbeddedPostgres, databases: MigratedDatabases, kafka: EmbeddedKafka, tmp_path: Path
) -> Iterator[Shop]:
    """Create two services with empty databases, and with topics and groups of their own."""
    run = uuid.uuid4().hex[:12]
    with ExitStack() as closing:

        def service(name: str, *tables: str) -> Service:
            database = f"test_{name}_{run}"
            postgres.create_database(database)
            closing.callback(postgres.drop_database, database)
            made = Service(
                name=name,
                url=postgres.url(database),
                folder=tmp_path,
                tables=tables,
                environment={
                    "SHIELDTX_APP": f"shop.{name}:shield",
                    "SHIELDTX_SOURCE": name,
                    "SHIELDTX_DATABASE_URL": postgres.url(database),
                    "SHIELDTX_KAFKA_BOOTSTRAP": kafka.bootstrap,
                    "SHIELDTX_TOPIC_PREFIX": f"{run}.",
                    "SHIELDTX_TOPIC_PARTITIONS": "2",
                    "SHIELDTX_RELAY_LEASE": str(LEASE_S),
                    "SHIELDTX_RELAY_SEND_TIMEOUT": str(SEND_TIMEOUT_S),
                    "SHOP_ORDERS_GROUP": f"orders-{run}",
                    "SHOP_STOCK_GROUP": f"stock-{run}",
                },
            )
            closing.callback(made.end)
            made.make_tables()
            return made

        orders = service("orders", "placed (number int)", "cancelled (number int)")
        stock = service("stock", "reserved (id serial, key text, number int)")
        writer = ShieldTx(
            # The writer accepts larger payloads than the broker does, so that some events fail.
            Settings(
                source="orders",
                database_url=orders.url,
                topic_prefix=f"{run}.",
                max_payload_bytes=2_000_000,
            ),
            engine=orders.engine,
        )
        closing.callback(writer.close)
        writer.declare("orders.placed")
        yield Shop(
            databases=databases,
            orders=orders,
            stock=stock,
            kafka=kafka,
            prefix=f"{run}.",
            writer=writer,
        )


def is_ready(worker: ChildProcess) -> bool:
    """Return whether a worker has reported that it is ready."""
    return re.search(r"^ready: ", worker.log.read_text(), re.MULTILINE) is not None


def status_of(worker: ChildProcess, *, within: float = 20.0) -> int | None:
    """Wait until a worker exits and return its exit status."""
    assert worker.wait(within), f"still there after {within} s:\n{worker.log_tail()}"
    return worker.exit_status


def first_of_each_key(records: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    """Return the numbers of each key in the order of their first occurrence."""
    seen: dict[str, list[int]] = {}
    for key, number in records:
        numbers = seen.setdefault(key, [])
        if number not in numbers:
            numbers.append(number)
    return seen


def unread_bytes(port: int) -> int:
    """Return how many received bytes the kernel holds that the server has not read yet."""
    unread = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, _, queues, *_ = line.split()
            if int(local.rpartition(":")[2], 16) == port:
                unread += int(queues.partition(":")[2], 16)
    return unread
