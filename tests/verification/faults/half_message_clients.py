"""The half-message clients of the old ledger, and the half messages of their transfers.

The account identifies a transfer everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.verification.faults.bank.half_message_clients import ClientRun, PausePoint, work
from tests.verification.faults.banks import NOTHING, PATIENCE_S, Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.half_message_ledger import Ledger
from tests.verification.faults.side import Side
from tests.verification.faults.workers import Worker

EXIT_UNREPORTED = Failpoint(step="local", when="after", action="exit")
"""The process exits after the local transaction, before it reports the outcome."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfMessageClient:
    """A running client process."""

    client_run: ClientRun
    worker: Worker

    def resume(self) -> None:
        """Resume the client at its pause point."""
        self.client_run.resume_file.touch()

    def end(self) -> None:
        """Resume the client, and wait until it has ended or was killed at a failpoint."""
        self.resume()
        if not self.worker.join(60):
            raise RuntimeError(f"{self.client_run.name} does not end\n{self.worker.tail()}")


@dataclass(frozen=True, slots=True)
class HalfMessageClients:
    """The half-message clients of a bank that has a ledger."""

    banks: Banks

    @property
    def side(self) -> Side:
        """The bank of the clients."""
        return self.banks.upstream

    @property
    def ledger(self) -> Ledger:
        """The ledger of the bank."""
        assert self.banks.ledger is not None
        return self.banks.ledger

    def begin(
        self,
        name: str,
        *,
        dies_at: Failpoint | None = None,
        environment: Mapping[str, str] = NOTHING,
        **options: Any,
    ) -> HalfMessageClient:
        """Start a client process; `options` are those of ClientRun."""
        client_run = ClientRun(
            name=name, folder=str(self.banks.folder), journal=str(self.banks.journal), **options
        )
        broken = self.side.broken_at(dies_at) if dies_at else NOTHING
        worker = self.side.call(name, work, client_run, **{**environment, **broken})
        return HalfMessageClient(client_run=client_run, worker=worker)

    def until_paused(self, *clients: HalfMessageClient) -> None:
        """Wait until each client has reached its pause point."""
        for client in clients:
            pause_at = client.client_run.pause_at or PausePoint.OPEN
            self.banks.until(
                client.client_run.pause_file(pause_at).exists,
                f"{client.client_run.name} pauses: {pause_at}",
            )

    def state(self, account: str) -> str:
        """Return the status of a transfer's half message; empty where there is none."""
        rows = self.side.rows("SELECT status FROM shield_outbox WHERE key = :a", a=account)
        return str(rows[0].status) if rows else ""

    def checks(self, account: str) -> int:
        """Return how many checks of a transfer were counted."""
        return int(self.side.one("SELECT checks FROM shield_outbox WHERE key = :a", a=account))

    def is_answered(self, account: str) -> bool:
        """Return whether a check of a transfer has ended, with any outcome."""
        answered = "SELECT status <> 'HALF' OR last_error IS NOT NULL FROM shield_outbox"
        return bool(self.side.one(f"{answered} WHERE key = :a", a=account))

    def message(self, account: str) -> str:
        """Return the id of a transfer's half message."""
        return str(self.side.one("SELECT event_id FROM shield_outbox WHERE key = :a", a=account))

    def make_checks_due(self) -> None:
        """Make the next check of every half message due."""
        self.side.execute("UPDATE shield_outbox SET check_at = now() WHERE status = 'HALF'")

    def until_state(self, status: str, *accounts: str, within: float = PATIENCE_S) -> None:
        """Wait until all half messages have reached a status."""
        for account in accounts:
            self.banks.until(
                lambda a=account: self.state(a) == status, f"{account} is {status}", within
            )

    def until_checks_fail(self, why: str, *accounts: str) -> None:
        """Wait until a check of each half message has failed for a reason."""
        answered = (
            "SELECT count(*) FROM shield_outbox WHERE key = ANY(:accounts) AND status = 'HALF' "
            "AND last_error LIKE :why"
        )
        self.banks.until(
            lambda: (
                self.side.one(answered, accounts=list(accounts), why=f"%{why}%") == len(accounts)
            ),
            f"checks of {', '.join(accounts)} fail: {why}",
        )

    def expect_unpublished(self, accounts: Iterable[str]) -> None:
        """Expect no record of these transfers on the topics."""
        seen = {record.key for record in self.banks.records()} & set(accounts)
        self.banks.expect(not seen, f"on the topic before their outcome is known: {sorted(seen)}")

    def expect_ends(self, ends: Mapping[str, str]) -> None:
        """Wait until each half message has its status, and expect the ledger to agree with it."""
        for account, status in ends.items():
            self.until_state(status, account)
            booked = self.ledger.holds(account)
            self.banks.expect(
                booked == (status == "PROCESSED"),
                f"{account} is {status}, and its local transaction has "
                f"{'committed' if booked else 'not committed'}",
            )
