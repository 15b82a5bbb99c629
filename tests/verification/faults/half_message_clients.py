"""What happens at the counter of the old ledger: tellers, and the half messages of their transfers.

The account of a transfer names all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.verification.faults.bank.half_message_clients import ClientRun, Stand, work
from tests.verification.faults.banks import NOTHING, Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.half_message_ledger import Ledger
from tests.verification.faults.side import Side
from tests.verification.faults.workers import Worker

DIES_UNHEARD = Failpoint(step="local", when="after", action="exit")
"""The local transaction has ended, and nobody has been told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfMessageClient:
    """A process of tellers at work."""

    shift: ClientRun
    worker: Worker

    def go_on(self) -> None:
        """Let it go on from where it stands."""
        self.shift.go.touch()

    def end(self) -> None:
        """Let it go on, and wait until it has ended, or was killed at a failpoint."""
        self.go_on()
        if not self.worker.join(60):
            raise RuntimeError(f"{self.shift.name} does not end\n{self.worker.tail()}")


@dataclass(frozen=True, slots=True)
class HalfMessageClients:
    """The counter of a bank that has a ledger."""

    banks: Banks

    @property
    def side(self) -> Side:
        """The bank."""
        return self.banks.upstream

    @property
    def ledger(self) -> Ledger:
        """Its ledger."""
        assert self.banks.ledger is not None
        return self.banks.ledger

    def begin(
        self,
        name: str,
        *,
        dies_at: Failpoint | None = None,
        environment: Mapping[str, str] = NOTHING,
        **shift: Any,
    ) -> HalfMessageClient:
        """Let tellers begin; see Shift."""
        ordered = ClientRun(
            name=name, folder=str(self.banks.folder), journal=str(self.banks.journal), **shift
        )
        broken = self.side.broken_at(dies_at) if dies_at else NOTHING
        worker = self.side.call(name, work, ordered, **{**environment, **broken})
        return HalfMessageClient(shift=ordered, worker=worker)

    def until_they_stand(self, *tellers: HalfMessageClient) -> None:
        """Wait until each stands where it should."""
        for teller in tellers:
            stand = teller.shift.stand or Stand.OPEN
            self.banks.until(
                teller.shift.stands(stand).exists, f"{teller.shift.name} stands {stand}"
            )

    def state(self, account: str) -> str:
        """Return the status of a transfer's half message; empty where there is none."""
        rows = self.side.rows("SELECT status FROM shield_outbox WHERE key = :a", a=account)
        return str(rows[0].status) if rows else ""

    def checks(self, account: str) -> int:
        """Return how many checks of a transfer were counted."""
        return int(self.side.one("SELECT checks FROM shield_outbox WHERE key = :a", a=account))

    def is_answered(self, account: str) -> bool:
        """Whether a check of a transfer has come back, whatever it said."""
        answered = "SELECT status <> 'HALF' OR last_error IS NOT NULL FROM shield_outbox"
        return bool(self.side.one(f"{answered} WHERE key = :a", a=account))

    def message(self, account: str) -> str:
        """Return the id of a transfer's half message."""
        return str(self.side.one("SELECT event_id FROM shield_outbox WHERE key = :a", a=account))

    def let_time_pass(self) -> None:
        """Have the next check of every half message be due."""
        self.side.execute("UPDATE shield_outbox SET check_at = now() WHERE status = 'HALF'")

    def until_state(self, status: str, *accounts: str, within: float = 30.0) -> None:
        """Wait until all half messages have come to a status."""
        for account in accounts:
            self.banks.until(
                lambda a=account: self.state(a) == status, f"{account} is {status}", within
            )

    def until_asked_in_vain(self, why: str, *accounts: str) -> None:
        """Wait until a check of each half message has not come to know its end, for a reason."""
        answered = (
            "SELECT count(*) FROM shield_outbox WHERE key = ANY(:accounts) AND status = 'HALF' "
            "AND last_error LIKE :why"
        )
        self.banks.until(
            lambda: (
                self.side.one(answered, accounts=list(accounts), why=f"%{why}%") == len(accounts)
            ),
            f"checks of {', '.join(accounts)} say: {why}",
        )

    def expect_unseen(self, accounts: Iterable[str]) -> None:
        """Expect that nobody who reads the topics finds anything of these transfers."""
        seen = {record.key for record in self.banks.records()} & set(accounts)
        self.banks.expect(not seen, f"on the topic although nobody knows their end: {sorted(seen)}")

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
