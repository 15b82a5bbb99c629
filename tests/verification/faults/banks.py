"""Two running banks: their processes and clients, and the questions of scenarios about them."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy.exc import DBAPIError

from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.verification.faults.bank import MARKER, TRANSFERRED
from tests.verification.faults.bank.clients import Orders, work
from tests.verification.faults.checker import Counts, count, gather
from tests.verification.faults.disks import SmallDisk
from tests.verification.faults.half_message_ledger import Ledger
from tests.verification.faults.journal import Operations
from tests.verification.faults.proxy import FaultProxy
from tests.verification.faults.reconciliation_outcomes import Reconciled
from tests.verification.faults.side import Side
from tests.verification.faults.topics import Place, Read, read_whole
from tests.verification.faults.workers import Worker

DRAIN_WITHIN_S = 90.0
PATIENCE_S = 90.0
"""Maximum wait for a condition, on a machine that other faults slow down."""
NOTHING: Mapping[str, str] = MappingProxyType({})
PRIVATE = "a payload is in the reasons"
"""The beginning of a problem; the rest names the side and the table."""
_REASONS = {
    "shield_outbox": (
        "concat(last_error, CASE tx_kind WHEN 'ROLLBACK' THEN concat(payload, headers) END)"
    ),
    "shield_inbox": "last_error",
    "shield_parked": "reason",
}
"""The columns with failure reasons: the payload of a rollback is the refusal's reason."""


class NotInTime(AssertionError):
    """A required event did not happen in time."""


@dataclass(kw_only=True)
class Banks:
    """Both banks of one fault."""

    upstream: Side
    downstream: Side
    kafka: EmbeddedKafka
    postgres: EmbeddedPostgres
    proxy: FaultProxy | None
    """The proxy between the processes and the broker."""
    disk: SmallDisk | None
    """PostgreSQL's disk, where PostgreSQL has a disk of its own."""
    ledger: Ledger | None
    """The ledger of an upstream bank whose transfers are half messages."""
    prefix: str
    folder: Path
    accounts: Sequence[str]
    seed: int
    chance: random.Random
    problems: list[str] = field(default_factory=list)
    """Expectations of a scenario, beyond the invariants, that failed."""
    gone: list[Read] = field(default_factory=list)
    """Records that the broker had and then lost on purpose."""
    reconciled: Reconciled = field(default_factory=Reconciled)
    """What runs of the reconciliation have found."""
    planted: set[Place] = field(default_factory=set)
    """Positions of the records that a foreign client wrote, which prove nothing about the banks."""
    _rounds: int = 0

    @property
    def topics(self) -> list[str]:
        """The broker's names of the topics."""
        return [f"{self.prefix}{TRANSFERRED}.{kind}" for kind in ("commit", "rollback")]

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return the banks: upstream, downstream."""
        return self.upstream, self.downstream

    def open_accounts(self, balance: int) -> None:
        """Give every account its opening balance."""
        self.upstream.execute(
            "INSERT INTO account "
            "SELECT name, :balance, 0 FROM unnest(CAST(:names AS text[])) AS name",
            balance=balance,
            names=list(self.accounts),
        )

    def open(self, *, but: str = "") -> None:
        """Start the processes of two banks, a relay and a consumer on each side, except `but`."""
        started = [
            side.launch(*words)
            for side in self.sides
            for words in (("relay",), ("consume", side.group))
            if but != f"{side.name} {words[0]}"
        ]
        for worker in started:
            worker.await_ready()

    def begin_writing(
        self, transfers: int = 200, *, environment: Mapping[str, str] = NOTHING, **orders: Any
    ) -> Worker:
        """Let clients make transfers in the background; see Orders."""
        self._rounds += 1
        given: dict[str, Any] = {"url": self.upstream.url, "accounts": self.accounts} | orders
        return self.upstream.call(
            "clients",
            work,
            Orders(
                journal=str(self.journal),
                transfers=transfers,
                seed=self.seed * 100 + self._rounds,
                **given,
            ),
            **environment,
        )

    def write(self, transfers: int = 200, **orders: Any) -> None:
        """Let clients make transfers, and wait until they have ended."""
        self.begin_writing(transfers, **orders).finish()

    @property
    def journal(self) -> Path:
        """The journal of all clients."""
        return self.folder / "journal"

    def until(
        self, condition: Callable[[], Any], description: str, within: float = PATIENCE_S
    ) -> float:
        """Wait for a condition; return the seconds waited. Raises NotInTime."""
        began = time.monotonic()
        while not self._holds(condition):
            if time.monotonic() - began > within:
                raise NotInTime(f"not within {within:.0f} s: {description}")
            time.sleep(0.05)
        return time.monotonic() - began

    def expect(self, condition: object, description: str) -> None:
        """Note a problem where an expectation beyond the invariants fails."""
        if not condition:
            self.problems.append(description)

    def struck(self, side: Side, within: float = 20.0) -> None:
        """Wait until a failpoint has struck."""
        self.until(side.mark.exists, f"a failpoint strikes {side.name}", within)

    def outlive_standstill(self, side: Side, within: float = 8.0) -> None:
        """Let others take over the work of a stopped process, then resume it as a zombie."""
        with suppress(NotInTime):
            self.until(self.drained, "nothing is left for the zombie", within)
        side.wake.touch()

    def drained(self) -> bool:
        """Return whether no event is in progress any more."""
        if any(side.unsettled() for side in self.sides):
            return False
        waiting = (
            "SELECT count(*) FROM transfer t WHERE NOT EXISTS (SELECT FROM refund WHERE id = t.id) "
            "AND NOT EXISTS (SELECT FROM shield_outbox WHERE event_id = t.id "
            "AND status = 'FAILED') AND NOT EXISTS (SELECT FROM shield_inbox "
            "WHERE causation_id = t.id AND status = 'DEAD')"
        )
        credited = "SELECT count(DISTINCT id) FROM credit"
        parked = "SELECT count(*) FROM shield_parked"
        left = self.upstream.one(waiting)
        if self.ledger is not None:
            left += self.ledger.one("SELECT count(*) FROM transfer")
        return left <= self.downstream.one(credited) + self.downstream.one(parked)

    def drain(self, within: float = DRAIN_WITHIN_S) -> float:
        """Wait until every event is in a terminal state; return the seconds waited."""
        return self.until(self.drained, "the backlog empties", within)

    def records(self) -> list[Read]:
        """Read both topics whole, without planted records."""
        found = read_whole(self.kafka.bootstrap, self.topics)
        return [*self.gone, *(read for read in found if read.place not in self.planted)]

    def count(self) -> Counts:
        """Count all outcomes."""
        evidence = gather(
            self.upstream.engine,
            self.downstream.engine,
            self.records(),
            Operations.read(self.journal),
            ledger=None if self.ledger is None else self.ledger.engine,
        )
        return count(evidence)

    def leaks(self) -> list[str]:
        """Return which logs contain a secret, or a text that is private to the other bank."""
        secrets = {"a payload": MARKER, "the database's password": self.postgres.password}
        if key := self.upstream.environment.get("SHIELDTX_SIGNING_KEY"):
            secrets["the signing key"] = key
        return [
            f"{what} is in {log.name}"
            for log in sorted(self.folder.glob("*.log"))
            for what, secret in secrets.items()
            if secret in log.read_text(errors="replace")
        ]

    def quoted(self) -> list[str]:
        """Return which tables have reasons with a text that is private to the other bank."""
        return [
            f"{PRIVATE} of {side.name}'s {table}"
            for side in self.sides
            for table, reason in _REASONS.items()
            if side.one(f"SELECT count(*) FROM {table} WHERE strpos({reason}, :m) > 0", m=MARKER)
        ]

    def logged(self, pattern: str) -> bool:
        """Return whether any process of the banks has logged this."""
        logs = [worker.log for side in self.sides for worker in side.workers]
        return any(re.search(pattern, log.read_text(errors="replace")) for log in logs)

    def count_in_server_log(self, words: str) -> int:
        """Return how often PostgreSQL's log contains this text."""
        return (self.postgres.directory / "postgres.log").read_text(errors="replace").count(words)

    def close(self) -> None:
        """Kill all remaining processes."""
        for side in self.sides:
            side.close()

    @staticmethod
    def _holds(condition: Callable[[], Any]) -> bool:
        try:
            return bool(condition())
        except DBAPIError:
            # An unreachable database answers no query.
            return False
