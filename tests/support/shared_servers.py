"""One PostgreSQL and one Apache Kafka for all processes of a test run.

The process that the user starts owns both servers and starts each at its first use. The workers of
pytest-xdist request the address through a connection on 127.0.0.1. The kernel ends the servers when
their owner dies (shieldtx.embedded.child_process), and the next run removes the directories.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from shieldtx.embedded.directories import ServerDirectory
from tests.support.memory import MEMORY, has_plenty_of_memory

POSTGRES_SETTINGS = {
    "max_connections": "500",
    # A small log is overwritten again and again and takes no memory for new files.
    "max_wal_size": "256MB",
    "max_prepared_transactions": "50",
}
KAFKA_SETTINGS = {
    # Quotas are measured over two seconds: a burst of one second is free, pauses are short.
    "quota.window.num": "2",
}

Server = EmbeddedPostgres | EmbeddedKafka
AnyServer = TypeVar("AnyServer", EmbeddedPostgres, EmbeddedKafka)


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """The address of a running server."""

    port: int
    directory: Path


class RunningPostgres(EmbeddedPostgres):
    """The run's PostgreSQL in a process that does not own it: `stop` and `close` do nothing."""

    def __init__(self, at: Address) -> None:
        super().__init__(at.directory, fsync=False)
        self.port = at.port
        self._directory = ServerDirectory.given(at.directory)


class RunningKafka(EmbeddedKafka):
    """The run's Kafka in a process that does not own it: `stop` and `close` do nothing."""

    def __init__(self, at: Address) -> None:
        super().__init__(at.directory, port=at.port)
        self._directory = ServerDirectory.given(at.directory)


class ServerOwner:
    """Starts each server at its first use, and answers the workers."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}
        self._starting = threading.Lock()
        self._listener: Listener | None = None
        self._secret = secrets.token_hex(16)

    def postgres(self) -> EmbeddedPostgres:
        """Return the run's PostgreSQL: fast, and without durability when the machine crashes."""
        return self._started(
            "postgres", lambda: EmbeddedPostgres(fsync=False, settings=POSTGRES_SETTINGS)
        )

    def kafka(self) -> EmbeddedKafka:
        """Return the run's Kafka: each test uses topics and groups of its own."""
        return self._started("kafka", lambda: EmbeddedKafka(settings=KAFKA_SETTINGS))

    def listen(self) -> dict[str, Any]:
        """Answer workers from now on; return the parameters of their connections."""
        if self._listener is None:
            self._listener = Listener(("127.0.0.1", 0), authkey=self._secret.encode())
            threading.Thread(target=self._accept, name="servers of the run", daemon=True).start()
        _, port = self._listener.address
        return {"port": port, "secret": self._secret}

    def close(self) -> None:
        """Stop the listener and the servers."""
        if self._listener is not None:
            self._listener.close()
        for server in self._servers.values():
            server.close()

    def _started(self, name: str, make: Callable[[], AnyServer]) -> AnyServer:
        with self._starting:
            if name not in self._servers:
                server = make()
                start_in_memory(server)
                self._servers[name] = server
            return cast("AnyServer", self._servers[name])

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # closed
                return
            except Exception:  # noqa: BLE001, S112  a client without the secret
                continue
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            try:
                server = {"postgres": self.postgres, "kafka": self.kafka}[connection.recv()]()
                connection.send(Address(port=server.port, directory=server.directory))
            except Exception as error:  # noqa: BLE001  raised again in the worker
                connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


class ServerClient:
    """Requests the servers from their owner, in a worker of pytest-xdist."""

    def __init__(self, port: int, secret: str) -> None:
        self._address = ("127.0.0.1", port)
        self._secret = secret.encode()

    def postgres(self) -> EmbeddedPostgres:
        return RunningPostgres(self._ask("postgres"))

    def kafka(self) -> EmbeddedKafka:
        return RunningKafka(self._ask("kafka"))

    def _ask(self, name: str) -> Address:
        with Client(self._address, authkey=self._secret) as connection:
            connection.send(name)
            answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


OWNER = pytest.StashKey[ServerOwner]()


def pytest_configure(config: pytest.Config) -> None:
    """Own the servers in the process that the user started."""
    if not hasattr(config, "workerinput"):
        config.stash[OWNER] = ServerOwner()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the address of the servers to a worker, before it starts."""
    node.workerinput["servers"] = node.config.stash[OWNER].listen()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers."""
    if owner := config.stash.get(OWNER, None):
        owner.close()


def _servers_of(config: pytest.Config) -> ServerOwner | ServerClient:
    """Return the object that starts the run's servers, or requests them."""
    if hasattr(config, "workerinput"):
        return ServerClient(**config.workerinput["servers"])
    return config.stash[OWNER]


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> EmbeddedPostgres:
    """The PostgreSQL of the run; its data survive its own crashes, not the machine's."""
    return _servers_of(pytestconfig).postgres()


@pytest.fixture(scope="session")
def undisturbed_postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of this process alone.

    For tests that wait for the transactions of the whole server: those of other tests would delay
    them.
    """
    server = EmbeddedPostgres(fsync=False)
    try:
        start_in_memory(server)
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> EmbeddedKafka:
    """The Apache Kafka of the run: each test uses topics and groups of its own."""
    return _servers_of(pytestconfig).kafka()


def start_in_memory(server: Server) -> None:
    """Start a server, with its files in memory if there is plenty."""
    with pytest.MonkeyPatch.context() as patched:
        if has_plenty_of_memory():
            patched.setattr(tempfile, "tempdir", str(MEMORY))
        server.start()
