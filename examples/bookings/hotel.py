"""The processes of both services on embedded servers; each can be killed and restarted."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from sqlalchemy import create_engine, text

from examples.retail.stage import inherited_environment
from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from shieldtx.embedded.child_process import ChildProcess

HOST = "127.0.0.1"
SERVICES = ("bookings", "rooms")
COMMAND_S = 120.0
START_S = 60.0
SHIELDTX = (sys.executable, "-c", "from shieldtx.cli import main; main()")

WORKERS = MappingProxyType(
    {
        "relay of bookings": ("bookings", "relay"),
        "relay of rooms": ("rooms", "relay"),
        "consumer of bookings": ("bookings", "consume", "bookings"),
        "consumer of rooms": ("rooms", "consume", "rooms"),
        "second consumer of rooms": ("rooms", "consume", "rooms"),
    }
)
WEB = "web server of bookings"

TABLES = MappingProxyType(
    {
        "bookings": (
            # The last two columns count effects: one that happened twice shows.
            """bookings (id text PRIMARY KEY, guest text, night text, status text, room int,
            confirmed int DEFAULT 0, cancelled int DEFAULT 0)""",
            "nights (night text PRIMARY KEY, wanted int)",
        ),
        # Without a unique constraint: a room that is given away twice shows.
        "rooms": ("assignments (booking text, night text, room int)",),
    }
)

SETTINGS = MappingProxyType(
    {
        # Short, so that the work of a dead process goes on soon.
        "SHIELDTX_RELAY_LEASE": "5",
        "SHIELDTX_RELAY_SEND_TIMEOUT": "3",
        "SHIELDTX_CONSUMER_CONCURRENCY": "4",
        "SHIELDTX_TOPIC_PARTITIONS": "4",
        "SHIELDTX_TOPIC_REPLICATION": "1",
    }
)


@dataclass
class Hotel:
    """Both services, and the folder of their logs."""

    folder: Path
    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka
    settings: Mapping[str, str]
    running: dict[str, ChildProcess] = field(default_factory=dict)
    port: int = 0

    def open(self) -> None:
        """Create databases, tables and topics, and start all processes."""
        for service in SERVICES:
            self.postgres.create_database(service)
            self._command(service, "db", "upgrade")
            self._command(service, "topics", "create")
            self._create_tables(service)
        self.port = _free_port()
        for name in (WEB, *WORKERS):
            self.start(name)
        self.running[WEB].await_ready(self._answers, within=START_S)

    def start(self, name: str) -> None:
        """Start a process by its name."""
        if name == WEB:
            command: tuple[str, ...] = (
                *(sys.executable, "-m", "uvicorn", "examples.bookings.bookings:api"),
                *("--host", HOST, "--port", str(self.port), "--log-level", "warning"),
            )
            service = "bookings"
        else:
            service, *words = WORKERS[name]
            command = (*SHIELDTX, *words)
        self.running[name] = self._launch(name, service, command)

    def kill(self, name: str) -> None:
        """End a process with SIGKILL and start it again at once."""
        self.running.pop(name).kill()
        self.start(name)

    def check(self) -> None:
        """Raise ServerFailed if a process has ended by itself."""
        for process in self.running.values():
            process.require_running()

    def stop(self) -> None:
        """Stop all processes gracefully."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for name in list(self.running):
            self.running.pop(name).stop(patience=20)

    def kill_all(self) -> None:
        """End the processes that still run."""
        for name in list(self.running):
            self.running.pop(name).kill()

    def url(self, service: str) -> str:
        """Return the address of a service's database."""
        return self.postgres.url(service)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def _create_tables(self, service: str) -> None:
        engine = create_engine(self.url(service))
        with engine.begin() as connection:
            for table in TABLES[service]:
                connection.execute(text(f"CREATE TABLE {table}"))
        engine.dispose()

    def _command(self, service: str, *words: str) -> None:
        process = self._launch(" ".join(("shieldtx", *words)), service, (*SHIELDTX, *words))
        process.finish(within=COMMAND_S)

    def _launch(self, name: str, service: str, command: tuple[str, ...]) -> ChildProcess:
        return ChildProcess.start(
            command,
            name=name,
            log=self.folder / f"{name.replace(' ', '-')}.log",
            environment=self._environment(service),
            directory=self.folder,
        )

    def _environment(self, service: str) -> dict[str, str]:
        return inherited_environment() | {
            "SHIELDTX_APP": f"examples.bookings.{service}:shield",
            "SHIELDTX_SOURCE": service,
            "SHIELDTX_DATABASE_URL": self.url(service),
            "SHIELDTX_KAFKA_BOOTSTRAP": self.kafka.bootstrap,
            **SETTINGS,
            **self.settings,
        }


@contextmanager
def opened(folder: Path, **settings: str) -> Iterator[Hotel]:
    """Start the servers and both services; end them all, however the block ends."""
    with ExitStack() as closing:
        postgres = closing.enter_context(EmbeddedPostgres())
        kafka = closing.enter_context(EmbeddedKafka())
        hotel = Hotel(folder=folder, postgres=postgres, kafka=kafka, settings=settings)
        closing.callback(hotel.kill_all)
        hotel.open()
        yield hotel


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
