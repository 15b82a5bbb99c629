"""One of the two banks: its database, and its processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests.verification.faults.failpoints import ENVIRONMENT, Failpoint
from tests.verification.faults.workers import Worker


@dataclass(kw_only=True)
class Side:
    """One of the banks: its database and its processes."""

    name: str
    url: str
    environment: Mapping[str, str]
    folder: Path
    workers: list[Worker] = field(default_factory=list)

    @property
    def database(self) -> str:
        """The name of its database."""
        return make_url(self.url).database or ""

    @property
    def group(self) -> str:
        """The consumer group of the bank."""
        return self.environment["BANK_GROUP"]

    @cached_property
    def engine(self) -> Engine:
        """Return the tests' own engine for its database, which bypasses every proxy."""
        return create_engine(self.url, poolclass=NullPool, connect_args={"connect_timeout": 5})

    def relay(self, **environment: str) -> Worker:
        """Start a relay and wait until it is ready."""
        return self.launch("relay", **environment).await_ready()

    def consume(self, **environment: str) -> Worker:
        """Start a consumer and wait until it is ready."""
        return self.launch("consume", self.group, **environment).await_ready()

    def launch(self, *words: str, **environment: str) -> Worker:
        """Run a command."""
        return self._add(
            Worker.command(words, environment=self.environment | environment, log=self._log())
        )

    def call(
        self, name: str, function: Callable[..., None], *arguments: Any, **more: str
    ) -> Worker:
        """Run a function of the tests as one of the bank's processes."""
        return self._add(
            Worker.function(
                name, function, *arguments, environment=self.environment | more, log=self._log()
            )
        )

    def broken_at(self, failpoint: Failpoint) -> Mapping[str, str]:
        """Return the environment of a process with a failpoint."""
        return {
            ENVIRONMENT: str(failpoint),
            "BANK_MARK": str(self.mark),
            "BANK_WAKE": str(self.wake),
        }

    @property
    def mark(self) -> Path:
        """The file that a failpoint leaves when it strikes."""
        return self.folder / f"{self.name}.struck"

    @property
    def wake(self) -> Path:
        """The file that ends the standstill of a process that a failpoint stopped."""
        return self.folder / f"{self.name}.awake"

    def rows(self, statement: str, **parameters: Any) -> list[Any]:
        """Read from its database."""
        with self.engine.connect() as connection:
            return list(connection.execute(text(statement), parameters).all())

    def one(self, statement: str, **parameters: Any) -> Any:
        """Read one value from its database."""
        ((value,),) = self.rows(statement, **parameters)
        return value

    def execute(self, statement: str, **parameters: Any) -> None:
        """Change something in its database."""
        with self.engine.begin() as connection:
            connection.execute(text(statement), parameters)

    def tamper(self, statement: str, **parameters: Any) -> None:
        """Change rows without the history, which would call the change illegal."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.execute(text(statement), parameters)

    def outbox(self) -> dict[str, int]:
        """Return the number of outbox rows by state."""
        return dict(map(tuple, self.rows("SELECT status, count(*) FROM shield_outbox GROUP BY 1")))

    def inbox(self) -> dict[str, int]:
        """Return the number of inbox rows by state."""
        return dict(map(tuple, self.rows("SELECT status, count(*) FROM shield_inbox GROUP BY 1")))

    def unsettled(self) -> int:
        """Return the number of rows that are not settled."""
        return int(
            self.one(
                "SELECT (SELECT count(*) FROM shield_outbox WHERE settled_at IS NULL) + "
                "(SELECT count(*) FROM shield_inbox WHERE settled_at IS NULL)"
            )
        )

    def stop_all(self) -> None:
        """Ask all remaining processes for a graceful end."""
        for worker in self.workers:
            worker.send(signal.SIGTERM)
        for worker in self.workers:
            worker.join(30)
            worker.kill()

    def close(self) -> None:
        """Kill all remaining processes."""
        for worker in self.workers:
            worker.kill()
        self.engine.dispose()

    def _add(self, worker: Worker) -> Worker:
        self.workers.append(worker)
        return worker

    def _log(self) -> Path:
        log = self.folder / f"{self.name}-{len(self.workers)}.log"
        log.touch()
        return log
