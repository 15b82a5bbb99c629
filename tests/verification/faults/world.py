"""The servers of a run, and for each fault two fresh banks on them."""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from shieldtx.brokers.kafka.broker import KafkaConnection, KafkaTopics
from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from shieldtx.embedded.free_ports import free_port
from shieldtx.store.schema import Schema
from tests.verification.faults import history
from tests.verification.faults.bank import DOWNSTREAM_TABLES, OPENING_BALANCE, UPSTREAM_TABLES
from tests.verification.faults.bank.ledger_database import LEDGER
from tests.verification.faults.banks import Banks
from tests.verification.faults.disks import SmallDisk
from tests.verification.faults.half_message_ledger import SOON, Ledger
from tests.verification.faults.proxy import FaultProxy
from tests.verification.faults.proxy import kafka as kafka_protocol
from tests.verification.faults.side import Side

ACCOUNTS = 12
PARTITIONS = 3
SHARDS = 16
_ENOUGH = {"max_connections": "200", "max_prepared_transactions": "20"}
TEMPLATES = {"upstream": UPSTREAM_TABLES, "downstream": DOWNSTREAM_TABLES}


class World:
    """A PostgreSQL and a Kafka for any number of banks."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self.folder = Path()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self.folder = Path(opening.enter_context(tempfile.TemporaryDirectory(prefix="banks-")))
            self.postgres = opening.enter_context(postgres())
            for name, tables in TEMPLATES.items():
                make_template(self.postgres, name, tables)
            self.kafka = opening.enter_context(EmbeddedKafka())
            self._open = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    @contextmanager
    def banks(
        self,
        name: str,
        *,
        seed: int,
        postgres: EmbeddedPostgres | None = None,
        kafka: EmbeddedKafka | None = None,
        proxy: FaultProxy | None = None,
        disk: SmallDisk | None = None,
        ledger: Ledger | None = None,
        settings: Mapping[str, str] = {},
        accounts: int = ACCOUNTS,
    ) -> Iterator[Banks]:
        """Open two banks; a fault's own servers replace those of the run."""
        run = f"{name.lower()}_{uuid.uuid4().hex[:8]}"
        postgres, kafka = postgres or self.postgres, kafka or self.kafka
        folder = self.folder / run
        folder.mkdir()
        sides = []
        for side in TEMPLATES:
            database = f"{side}_{run}"
            postgres.create_database(database, template=f"template_{side}")
            sides.append(
                Side(
                    name=side,
                    url=postgres.url(database),
                    folder=folder,
                    environment={
                        "SHIELDTX_APP": f"tests.verification.faults.bank.{side}:shield",
                        "SHIELDTX_SOURCE": side,
                        "SHIELDTX_DATABASE_URL": postgres.url(database),
                        "SHIELDTX_SHARDS": str(SHARDS),
                        "SHIELDTX_KAFKA_BOOTSTRAP": (
                            f"127.0.0.1:{proxy.port}" if proxy else kafka.bootstrap
                        ),
                        "SHIELDTX_TOPIC_PREFIX": f"{run}.",
                        "SHIELDTX_RELAY_LEASE": "2",
                        # The transfers of a scenario fail in any number, one like the other.
                        "SHIELDTX_CONSUMER_BREAKER": "0",
                        "SHIELDTX_RELAY_SEND_TIMEOUT": "1.5",
                        "SHIELDTX_RELAY_POLL_INTERVAL": "0.1",
                        "SHIELDTX_RELAY_WAKEUP": "false",
                        "SHIELDTX_RELAY_BATCH_SIZE": "50",
                        "SHIELDTX_CONSUMER_BATCH_SIZE": "50",
                        "SHIELDTX_STOP_TIMEOUT": "10",
                        # More than the broker accepts, so that some events can fail.
                        "SHIELDTX_MAX_PAYLOAD_BYTES": "2000000",
                        "BANK_GROUP": f"{side}-{run}",
                        "BANK_HANDLER_LEASE": "2",
                        # The partitions of a killed consumer move to others after the shortest time
                        # that brokers allow.
                        "BANK_SESSION_TIMEOUT": "6",
                        **settings,
                    },
                )
            )
        banks = Banks(
            upstream=sides[0],
            downstream=sides[1],
            kafka=kafka,
            postgres=postgres,
            proxy=proxy,
            disk=disk,
            ledger=ledger,
            prefix=f"{run}.",
            folder=folder,
            accounts=[f"account-{n}" for n in range(accounts)],
            seed=seed,
            chance=random.Random(seed),
        )
        try:
            make_topics(kafka, banks.topics)
            banks.open_accounts(OPENING_BALANCE)
            yield banks
        finally:
            banks.close()
            # A fault's own server may be unusable, and is removed as a whole.
            if postgres is self.postgres:
                for each in sides:
                    postgres.drop_database(each.database)


def own_kafka(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Start a broker with a proxy in front, for a fault that breaks either."""
    port = free_port()
    proxy = open_.enter_context(FaultProxy(port, kafka_protocol))
    kafka = open_.enter_context(EmbeddedKafka(port=port, advertised_port=proxy.port))
    return {"kafka": kafka, "proxy": proxy}


def own_postgres(
    world: World, open_: ExitStack, directory: Path | None = None, **settings: str
) -> Mapping[str, Any]:
    """Start a PostgreSQL, for a fault that breaks it."""
    # Recovery would visit each of its thousands of files, which takes seconds on a busy disk.
    settings = {"recovery_init_sync_method": "syncfs", **settings}
    server = open_.enter_context(postgres(directory, **settings))
    for name, tables in TEMPLATES.items():
        make_template(server, name, tables)
    return {"postgres": server}


def own_servers(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Start a broker and a PostgreSQL: one whose transactions are those of this fault alone."""
    return {**own_kafka(world, open_), **own_postgres(world, open_)}


def own_ledger(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Give the upstream bank a ledger in another database, and relays that check it soon."""
    name = f"ledger_{uuid.uuid4().hex[:8]}"
    world.postgres.create_database(name, template="template_upstream")
    open_.callback(world.postgres.drop_database, name)
    ledger = Ledger(world.postgres.url(name))
    return {"ledger": ledger, "settings": {LEDGER: ledger.url, **SOON}}


def postgres(directory: Path | None = None, **settings: str) -> EmbeddedPostgres:
    """Make a PostgreSQL with durable commits, as the product's promise requires."""
    return EmbeddedPostgres(directory, fsync=True, settings=_ENOUGH | settings)


def make_template(server: EmbeddedPostgres, name: str, tables: str) -> None:
    """Make a database whose copies have all the tables of a bank."""
    template = f"template_{name}"
    server.create_database(template)
    engine = create_engine(server.url(template), poolclass=NullPool)
    Schema(engine, shards=SHARDS).upgrade()
    with engine.begin() as connection:
        for statement in tables.split(";\n"):
            if statement.strip():
                connection.execute(text(statement))
    history.install(engine)
    engine.dispose()


def make_topics(kafka: EmbeddedKafka, names: list[str]) -> None:
    """Make topics, directly at the broker."""
    topics = KafkaTopics(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    try:
        topics.create(names, partitions=PARTITIONS, replication=1)
    finally:
        topics.close()
