"""A client whose transaction stays open, and others that write in bulk meanwhile."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import create_engine, text

from shieldtx.domain.events import new_event_id
from shieldtx.outbox.session_events import flush_events
from tests.verification.faults.bank.journaled import journaled
from tests.verification.faults.journal import Journal


def hold(url: str, journal: str, account: str) -> None:
    """Insert a transfer and its event, pause with the transaction open, and commit when woken.

    The level is REPEATABLE READ, so that the snapshot is kept as well.
    """
    from tests.verification.faults.bank.upstream import shield, transfer

    engine = create_engine(url, isolation_level="REPEATABLE READ")
    operation = new_event_id()
    with journaled(engine, Journal(Path(journal)), operation) as session:
        transfer(session, operation, account, 1)
        flush_events(session)
        session.execute(text("SELECT count(*) FROM shield_outbox"))
        os.kill(os.getpid(), signal.SIGSTOP)
    shield.close()


def write_in_bulk(
    url: str, journal: str, accounts: Sequence[str], transactions: int, transfers: int
) -> None:
    """Make transactions of many transfers each."""
    from tests.verification.faults.bank.upstream import shield, transfer

    engine, notes, chance = create_engine(url), Journal(Path(journal)), random.Random(transactions)
    for _ in range(transactions):
        operations = [new_event_id() for _ in range(transfers)]
        with journaled(engine, notes, *operations) as session:
            for operation in operations:
                transfer(session, operation, chance.choice(accounts), chance.randint(1, 100))
    shield.close()
