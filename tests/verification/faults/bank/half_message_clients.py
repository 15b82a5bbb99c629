"""A client of the old ledger: a process that makes transfers by half messages.

Each transfer is the first of its account: a half message is ordered within its key by its outcome
or check, and that order may differ from the order in which the local transactions ended.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shieldtx.domain.events import new_event_id
from shieldtx.errors import ShieldTxError
from shieldtx.half_messages.block import HalfMessageBlock
from tests.verification.faults.bank import MARKER, TRANSFERRED, Transfer
from tests.verification.faults.bank.clients import PAUSE_AFTER_FAILURE
from tests.verification.faults.bank.ledger_database import book
from tests.verification.faults.failpoints import Struck
from tests.verification.faults.journal import Answer, Journal

log = logging.getLogger(__name__)

PAUSES_AT_MOST_S = 120.0


class End(StrEnum):
    """The outcome of a local transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    """Rolled back, and the client calls `rollback`."""
    RAISED = "raised"
    """Rolled back by an exception, without a call of `rollback`."""
    ABORTED = "aborted"
    """Rolled back by an error that the client swallows: the COMMIT rolls back silently."""


SOUND_ENDS = (End.COMMITTED, End.ROLLED_BACK, End.RAISED)
"""The outcomes of local transactions that a client knows."""


class PausePoint(StrEnum):
    """Where a client pauses until it is resumed."""

    PREPARED = "prepared"
    """The local transaction has not begun."""
    OPEN = "open"
    """The local transaction has made its entries."""


class TransferRefused(Exception):
    """Raised in a local transaction to roll it back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRun:
    """The job of a client process."""

    name: str
    """The account of the only transfer, or the common prefix of several accounts."""
    folder: str
    journal: str
    transfers: int = 1
    threads: int = 1
    ends: Sequence[End] = (End.COMMITTED,)
    """The outcomes of its transfers, in their order."""
    pause_at: PausePoint | None = None
    immunity: float | None = None
    """Seconds."""

    def accounts(self) -> Sequence[str]:
        """Return the account of each transfer."""
        several = self.transfers > 1
        return [f"{self.name}-{n}" if several else self.name for n in range(self.transfers)]

    def pause_file(self, pause_at: PausePoint) -> Path:
        """Return the file whose existence shows that the client pauses there."""
        return Path(self.folder) / f"{self.name}.{pause_at}"

    @property
    def resume_file(self) -> Path:
        """The file that resumes the client."""
        return Path(self.folder) / f"{self.name}.go"


def work(client_run: ClientRun) -> None:
    """Make all transfers, each thread its share of them, one after the other."""
    # Built from the environment of its process, as in every application.
    from tests.verification.faults.bank.upstream import ledger, shield

    with ThreadPoolExecutor(client_run.threads) as pool:
        shares = [
            pool.submit(_make_share, client_run, number) for number in range(client_run.threads)
        ]
        for share in shares:
            share.result()
    ledger.dispose()
    shield.close()


def _make_share(client_run: ClientRun, number: int) -> None:
    journal = Journal(Path(client_run.journal))
    for n, account in enumerate(client_run.accounts()):
        if n % client_run.threads == number:
            _transfer(client_run, journal, account, client_run.ends[n % len(client_run.ends)])
    journal.close()


def _transfer(client_run: ClientRun, journal: Journal, account: str, end: End) -> None:
    """Make one transfer; an error after its local transaction has ended changes nothing."""
    from tests.verification.faults.bank.upstream import shield

    transfer = Transfer(account=account, seq=1, amount=7, note=MARKER)
    immunity = None if client_run.immunity is None else timedelta(seconds=client_run.immunity)
    half = shield.half(TRANSFERRED, transfer, key=account, immunity=immunity)
    try:
        with half:
            _run(client_run, journal, half, transfer, end)
            if end is End.ROLLED_BACK:
                half.rollback()
    except (DBAPIError, ShieldTxError, Struck, TransferRefused) as error:
        log.warning("transfer from %s: %s: %s", account, type(error).__name__, error)
        time.sleep(PAUSE_AFTER_FAILURE)
    if not half.ids:
        # Not prepared, as far as the client knows, so the local transaction is not run.
        never_run = new_event_id()
        journal.begin(never_run)
        journal.end(never_run, answer="fail")


def _run(
    client_run: ClientRun, journal: Journal, half: HalfMessageBlock, transfer: Transfer, end: End
) -> None:
    """Run the local transaction, and note its outcome."""
    from tests.verification.faults.bank.upstream import ledger, shield

    journal.begin(half.id)
    answer: Answer = "fail"
    try:
        _pause(client_run, PausePoint.PREPARED)
        with Session(ledger) as session:
            half.guard(session)
            book(session, half.id, transfer.account, transfer.amount)
            _pause(client_run, PausePoint.OPEN)
            if end is End.RAISED:
                raise TransferRefused
            if end is End.ABORTED:
                with suppress(DBAPIError):
                    session.execute(text("SELECT 1 / 0"))
                session.commit()
            shield.breaker.reach("local", "before")
            if end is End.COMMITTED:
                answer = "info"
                session.commit()
                answer = "ok"
        shield.breaker.reach("local", "after")
    finally:
        journal.end(half.id, answer=answer)


def _pause(client_run: ClientRun, pause_at: PausePoint) -> None:
    """Pause at the client's pause point, with a timeout in case the scenario is gone."""
    if client_run.pause_at is not pause_at:
        return
    client_run.pause_file(pause_at).touch()
    ends = time.monotonic() + PAUSES_AT_MOST_S
    while not client_run.resume_file.exists() and time.monotonic() < ends and os.getppid() != 1:
        time.sleep(0.02)
