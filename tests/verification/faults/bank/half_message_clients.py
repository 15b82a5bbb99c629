"""The tellers of the old ledger: a process that makes transfers in it, by half messages.

Each transfer is the first of its account: the place of a half message in the order of a key is that
of its word or check, which need not be the order in which local transactions ended.
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

STANDS_AT_MOST_S = 120.0


class End(StrEnum):
    """How a local transaction ends."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    """And the teller says so."""
    RAISED = "raised"
    """Rolled back by an exception, which says nothing."""
    ABORTED = "aborted"
    """By an error that the teller swallows: the COMMIT rolls back silently."""


SOUND_ENDS = (End.COMMITTED, End.ROLLED_BACK, End.RAISED)
"""Of tellers who know how their transactions end."""


class Stand(StrEnum):
    """Where a teller stands still until it is let go."""

    PREPARED = "prepared"
    """The local transaction has not begun."""
    OPEN = "open"
    """It has made its entries."""


class ClosedForToday(Exception):
    """What a local transaction may raise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRun:
    """What a process of tellers is to do."""

    name: str
    """The account of its transfer, or, where there are several, the beginning of their names."""
    folder: str
    journal: str
    transfers: int = 1
    tellers: int = 1
    ends: Sequence[End] = (End.COMMITTED,)
    """Of its transfers in turn."""
    stand: Stand | None = None
    immunity: float | None = None
    """Seconds."""

    def accounts(self) -> Sequence[str]:
        """Return the account of each transfer."""
        several = self.transfers > 1
        return [f"{self.name}-{n}" if several else self.name for n in range(self.transfers)]

    def stands(self, stand: Stand) -> Path:
        """Return the file by which others see that it stands there."""
        return Path(self.folder) / f"{self.name}.{stand}"

    @property
    def go(self) -> Path:
        """The file that lets it go on."""
        return Path(self.folder) / f"{self.name}.go"


def work(shift: ClientRun) -> None:
    """Make all transfers, each teller its share of them, one after the other."""
    # Made by the environment of its process, as every application's is.
    from tests.verification.faults.bank.upstream import ledger, shield

    with ThreadPoolExecutor(shift.tellers) as pool:
        tellers = [pool.submit(_teller, shift, number) for number in range(shift.tellers)]
        for teller in tellers:
            teller.result()
    ledger.dispose()
    shield.close()


def _teller(shift: ClientRun, number: int) -> None:
    journal = Journal(Path(shift.journal))
    for n, account in enumerate(shift.accounts()):
        if n % shift.tellers == number:
            _transfer(shift, journal, account, shift.ends[n % len(shift.ends)])
    journal.close()


def _transfer(shift: ClientRun, journal: Journal, account: str, end: End) -> None:
    """Make one transfer; what is raised after its local transaction has an end changes nothing."""
    from tests.verification.faults.bank.upstream import shield

    told = Transfer(account=account, seq=1, amount=7, note=MARKER)
    immunity = None if shift.immunity is None else timedelta(seconds=shift.immunity)
    half = shield.half(TRANSFERRED, told, key=account, immunity=immunity)
    try:
        with half:
            _run(shift, journal, half, told, end)
            if end is End.ROLLED_BACK:
                half.rollback()
    except (DBAPIError, ShieldTxError, Struck, ClosedForToday) as error:
        log.warning("transfer from %s: %s: %s", account, type(error).__name__, error)
        time.sleep(PAUSE_AFTER_FAILURE)
    if not half.ids:
        # Not prepared, as far as the teller knows, and so its local transaction is not run.
        never_run = new_event_id()
        journal.begin(never_run)
        journal.end(never_run, answer="fail")


def _run(
    shift: ClientRun, journal: Journal, half: HalfMessageBlock, told: Transfer, end: End
) -> None:
    """Run the local transaction, and note how it ended."""
    from tests.verification.faults.bank.upstream import ledger, shield

    journal.begin(half.id)
    answer: Answer = "fail"
    try:
        _stand(shift, Stand.PREPARED)
        with Session(ledger) as session:
            half.guard(session)
            book(session, half.id, told.account, told.amount)
            _stand(shift, Stand.OPEN)
            if end is End.RAISED:
                raise ClosedForToday
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


def _stand(shift: ClientRun, stand: Stand) -> None:
    """Stand still where it should; not for ever, should the scenario be gone."""
    if shift.stand is not stand:
        return
    shift.stands(stand).touch()
    ends = time.monotonic() + STANDS_AT_MOST_S
    while not shift.go.exists() and time.monotonic() < ends and os.getppid() != 1:
        time.sleep(0.02)
