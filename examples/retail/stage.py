"""The servers of the demo: PostgreSQL with a database for each service, and Apache Kafka."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres

SERVICES = ("orders", "stock")
PROJECT = Path(__file__).resolve().parents[2]

SETTINGS = MappingProxyType(
    {
        # Short, so that the demo shows the takeover from a dead process soon.
        "SHIELDTX_RELAY_LEASE": "5",
        "SHIELDTX_RELAY_SEND_TIMEOUT": "3",
        # Periodic passes instead of one for each commit: a dozen processes share few cores.
        "SHIELDTX_RELAY_WAKEUP": "false",
        "SHIELDTX_RELAY_POLL_INTERVAL": "0.5",
    }
)
"""Settings of all processes of both services, without the addresses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """The servers, and the folder for all files of the demo."""

    folder: Path
    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka
    kafka_started: Future[None]

    def url(self, service: str) -> str:
        """Return the SQLAlchemy URL of a service's database, password included."""
        return self.postgres.url(service)

    def environment(self, service: str) -> Mapping[str, str]:
        """Return the environment of a service's processes, with the service's settings."""
        return inherited_environment() | {
            "SHIELDTX_SOURCE": service,
            "SHIELDTX_DATABASE_URL": self.url(service),
            "SHIELDTX_KAFKA_BOOTSTRAP": self.kafka.bootstrap,
            **SETTINGS,
        }

    def environment_for_all(self) -> Mapping[str, str]:
        """Return the environment for commands that read all services: the URL of each database."""
        return inherited_environment() | {
            f"{service.upper()}_URL": self.url(service) for service in SERVICES
        }


@contextmanager
def opened(folder: Path, *, keep: bool, anew: bool) -> Iterator[Stage]:
    """Start both servers, and stop them at the end; `keep` leaves their data in the folder.

    With `anew`, they start without data, otherwise with the kept data. PostgreSQL is ready then,
    with its databases; for Kafka call `kafka_started`.
    """
    databases, topics = (folder / name if keep else None for name in ("postgres", "kafka"))
    for kept in filter(None, (databases, topics) if anew else ()):
        shutil.rmtree(kept, ignore_errors=True)
    postgres, kafka = EmbeddedPostgres(databases), EmbeddedKafka(topics)
    with ExitStack() as closing:
        # Callbacks run from the last to the first: Kafka's start has ended before it is closed.
        closing.callback(kafka.close)
        closing.callback(postgres.close)
        background = closing.enter_context(ThreadPoolExecutor(1))
        kafka_started = background.submit(kafka.start)
        postgres.start()
        for service in SERVICES if anew else ():
            postgres.create_database(service)
        yield Stage(folder=folder, postgres=postgres, kafka=kafka, kafka_started=kafka_started)


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without variables for another shieldtx."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith("SHIELDTX_")}
    return mine | {"PYTHONPATH": str(PROJECT)}
