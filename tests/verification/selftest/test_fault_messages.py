"""Tests of the fault proxy between real clients and real servers: single messages are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata
from psycopg.rows import TupleRow
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from shieldtx.embedded.free_ports import HOST, free_port
from tests.verification.faults import proxy as protocols
from tests.verification.faults.proxy import TO_CLIENT, TO_SERVER, Api, FaultProxy, Then

Connection = psycopg.Connection[TupleRow]


@pytest.fixture
def database(postgres: EmbeddedPostgres, database_url: str) -> Iterator[FaultProxy]:
    with FaultProxy(postgres.port, protocols.postgres) as proxy:
        yield proxy


@pytest.fixture
def through(database: FaultProxy, database_url: str) -> str:
    """Return the database's URL, through the proxy."""
    url = make_url(database_url).set(port=database.port)
    return url.render_as_string(hide_password=False)


@pytest.fixture
def direct(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        connection.autocommit = True
        connection.execute("CREATE TABLE kept (n int)")
        yield connection


def connect(url: str) -> Connection:
    return psycopg.connect(url.replace("+psycopg", ""))


def kept(direct: Connection) -> list[int]:
    return [n for (n,) in direct.execute("SELECT n FROM kept ORDER BY n")]


def by_simple_query(connection: Connection) -> None:
    connection.commit()


def by_prepared_statement(connection: Connection) -> None:
    connection.execute("COMMIT", prepare=True)


def by_extended_query(connection: Connection) -> None:
    connection.execute("commit;", binary=True)


def in_a_pipeline(connection: Connection) -> None:
    with connection.pipeline():
        connection.execute("SELECT 1")
        connection.commit()


COMMITS = [by_simple_query, by_extended_query, by_prepared_statement, in_a_pipeline]


@pytest.mark.parametrize("commit", COMMITS)
def test_commit_with_a_lost_answer_is_done_but_unknown_to_client(
    database: FaultProxy, through: str, direct: Connection, commit: Callable[[Connection], None]
) -> None:
    with closing(connect(through)) as client, database.lose_answer("COMMIT") as lost:
        client.execute("INSERT INTO kept VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            commit(client)
        assert lost.struck == 1
    assert kept(direct) == [1]
    assert database.tally.swallowed == 1


@pytest.mark.parametrize("commit", COMMITS)
def test_a_commit_that_is_lost_on_its_way_is_not_done(
    database: FaultProxy, through: str, direct: Connection, commit: Callable[[Connection], None]
) -> None:
    with closing(connect(through)) as client, database.lose_request("COMMIT") as lost:
        client.execute("INSERT INTO kept VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            commit(client)
        assert lost.struck == 1
    assert kept(direct) == []


def test_sqlalchemy_meets_the_same_as_its_driver(
    database: FaultProxy, through: str, direct: Connection
) -> None:
    engine = create_engine(through)
    with database.lose_answer("COMMIT", nth=2) as lost:
        for number in (1, 2):
            connection = engine.connect()
            connection.execute(text("INSERT INTO kept VALUES (:n)"), {"n": number})
            if number == 1:
                connection.commit()
            else:
                with pytest.raises(OperationalError):
                    connection.commit()
            connection.close()
        assert lost.struck == 1
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO kept VALUES (3)"))
    engine.dispose()
    assert kept(direct) == [1, 2, 3]


def test_commit_of_a_failed_transaction_is_not_lost(
    database: FaultProxy, through: str, direct: Connection
) -> None:
    with closing(connect(through)) as client, database.lose_answer("COMMIT") as lost:
        with pytest.raises(psycopg.errors.DivisionByZero):
            client.execute("SELECT 1/0")
        client.commit()
        assert lost.struck == 0


def test_client_with_a_hanging_answer_learns_after_the_fault(
    database: FaultProxy, through: str, direct: Connection, eventually: Callable[..., None]
) -> None:
    client, raised = connect(through), []

    def commit() -> None:
        try:
            client.commit()
        except psycopg.OperationalError as error:
            raised.append(error)

    client.execute("INSERT INTO kept VALUES (1)")
    with database.lose_answer("COMMIT", then=Then.HANG) as lost:
        waiting = threading.Thread(target=commit)
        waiting.start()
        lost.until_struck(10)
        eventually(lambda: kept(direct) == [1], "the transaction is committed")
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(10)
    client.close()
    assert len(raised) == 1


def test_as_many_answers_are_lost_as_is_asked_for(
    database: FaultProxy, through: str, direct: Connection
) -> None:
    outcomes = []
    with database.lose_answer("COMMIT", nth=2, times=2) as lost:
        for number in range(5):
            with closing(connect(through)) as client:
                client.execute("INSERT INTO kept VALUES (%s)", [number])
                try:
                    client.commit()
                    outcomes.append("known")
                except psycopg.OperationalError:
                    outcomes.append("unknown")
        assert lost.struck == 2
    assert outcomes == ["known", "unknown", "unknown", "known", "known"]
    assert kept(direct) == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def behind() -> Iterator[tuple[EmbeddedKafka, FaultProxy]]:
    """Start a broker whose clients, wherever they start, are sent to the proxy."""
    port = free_port()
    with (
        FaultProxy(port, protocols.kafka) as proxy,
        EmbeddedKafka(port=port, advertised_port=proxy.port) as broker,
    ):
        yield broker, proxy


@pytest.fixture
def broker(behind: tuple[EmbeddedKafka, FaultProxy]) -> Iterator[FaultProxy]:
    _, proxy = behind
    yield proxy
    proxy.heal()


@pytest.fixture
def topic(broker: FaultProxy, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.originalname}-{time.monotonic_ns()}"
    with closing(KafkaAdminClient(bootstrap_servers=address(broker))) as admin:
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    return name


def address(proxy: FaultProxy) -> str:
    return f"{HOST}:{proxy.port}"


@contextmanager
def producing(bootstrap: str, **settings: Any) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        yield producer
    finally:
        producer.close(timeout=1)


def in_the_log(broker: FaultProxy, topic: str) -> list[bytes]:
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=address(broker))
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end, values = consumer.end_offsets([partition])[partition], []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=500).values():
                values += [record.value for record in records]
    finally:
        consumer.close()
    return values


# One attempt: the subject is what the client learns about it.
ONE_ATTEMPT = {
    "retries": 0,
    "enable_idempotence": False,
    "request_timeout_ms": 2_000,
    "delivery_timeout_ms": 3_000,
}


def test_clients_that_start_at_the_broker_go_through_the_proxy(
    behind: tuple[EmbeddedKafka, FaultProxy], topic: str
) -> None:
    server, proxy = behind
    before = proxy.tally
    payload = bytes(100_000)
    with producing(server.bootstrap) as producer:
        producer.send(topic, payload).get(timeout=20)
        after = proxy.tally
        assert after.connections > before.connections
        assert after.passed[TO_SERVER] - before.passed[TO_SERVER] > len(payload)
        with proxy.cut() as cut:
            assert cut.struck >= 1
            lost = producer.send(topic, b"while it is cut")
            with pytest.raises(KafkaError):
                lost.get(timeout=1)
        assert lost.get(timeout=20).offset == 1


@pytest.mark.parametrize("then", Then)
def test_record_with_a_lost_answer_is_in_the_log(
    broker: FaultProxy, topic: str, then: Then
) -> None:
    with producing(address(broker), **ONE_ATTEMPT) as producer:
        producer.send(topic, b"known").get(timeout=20)
        with broker.lose_answer(Api.PRODUCE, then=then) as lost:
            unknown = producer.send(topic, b"unknown")
            with pytest.raises(KafkaError):
                unknown.get(timeout=20)
            assert lost.struck == 1
    assert in_the_log(broker, topic) == [b"known", b"unknown"]


def test_a_record_that_is_lost_on_its_way_is_not_in_the_log(broker: FaultProxy, topic: str) -> None:
    with (
        producing(address(broker), **ONE_ATTEMPT) as producer,
        broker.lose_request(Api.PRODUCE) as lost,
    ):
        with pytest.raises(KafkaError):
            producer.send(topic, b"never heard of").get(timeout=20)
        assert lost.struck == 1
    assert in_the_log(broker, topic) == []


@pytest.mark.parametrize("way", [TO_SERVER, TO_CLIENT])
def test_idempotent_producer_repeats_after_a_break_in_mid_batch(
    broker: FaultProxy, topic: str, way: str
) -> None:
    values = [bytes([n]) * 20_000 for n in range(20)]
    count = {TO_SERVER: 30_000, TO_CLIENT: 10}
    with producing(address(broker), linger_ms=50, batch_size=200_000) as producer:
        producer.send(topic, b"connected").get(timeout=20)
        with broker.reset_after(count[way], to=way, of=Api.PRODUCE) as reset:
            futures = [producer.send(topic, value) for value in values]
            for future in futures:
                future.get(timeout=20)
            assert reset.struck == 1
    assert in_the_log(broker, topic) == [b"connected", *values]


def test_an_offset_whose_answer_is_lost_is_committed(broker: FaultProxy, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=address(broker), group_id=topic)
    consumer.assign([partition])
    with broker.lose_answer(Api.OFFSET_COMMIT, times=float("inf")) as lost:
        with pytest.raises(KafkaError):
            consumer.commit({partition: OffsetAndMetadata(7, "", -1)}, timeout_ms=2_000)
        assert lost.struck >= 1
    consumer.close(autocommit=False)
    with closing(KafkaConsumer(bootstrap_servers=address(broker), group_id=topic)) as other:
        assert other.committed(partition) == 7


def test_records_go_through_byte_by_byte(broker: FaultProxy, topic: str) -> None:
    values = [b"%d" % n * 50 for n in range(20)]
    with broker.slices() as slices:
        with producing(address(broker)) as producer:
            for future in [producer.send(topic, value) for value in values]:
                future.get(timeout=20)
        assert in_the_log(broker, topic) == values
        assert slices.struck > len(values)
