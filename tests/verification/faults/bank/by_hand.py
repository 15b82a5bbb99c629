"""Manual operations and cron jobs of the upstream bank; each runs in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from shieldtx.domain.events import new_event_id
from tests.verification.faults.bank import MARKER
from tests.verification.faults.bank.journaled import journaled
from tests.verification.faults.failpoints import Struck
from tests.verification.faults.journal import Journal

MANY = 1000
"""More dead letters than any scenario has."""


def replay_all() -> None:
    """Replay every dead letter, as an operator does after a repair of the cause."""
    from tests.verification.faults.bank.upstream import shield

    letters = shield.stores.dead_letters()
    try:
        letters.replay(letters.latest(limit=MANY), who="the fault matrix")
    except Struck:
        # The operator saw an error, lists again, and replays the remaining dead letters.
        letters.replay(letters.latest(limit=MANY), who="the fault matrix")


def purge() -> None:
    """Make a pass of retention."""
    from tests.verification.faults.bank.upstream import shield

    try:
        shield.build_retention().run_once()
    except Struck:
        shield.build_retention().run_once()


def transfer_each(journal: str, accounts: Sequence[str], fate: Mapping[str, str]) -> None:
    """Make one transfer from each account, in this order."""
    from tests.verification.faults.bank.upstream import shield, transfer

    notes = Journal(Path(journal))
    for account in accounts:
        operation = new_event_id()
        with journaled(shield.engine, notes, operation) as session:
            transfer(session, operation, account, 1, note=MARKER, **fate)
    shield.close()


def transfer_too_much(*accounts: str, size: int = 1_500_000) -> None:
    """Write events that are larger than what the broker takes, one for each account."""
    from tests.verification.faults.bank.upstream import shield, transfer

    for account in accounts:
        with Session(shield.engine) as session, session.begin():
            transfer(session, new_event_id(), account, 1, note="x" * size)


def transfer_slowly(account: str, folder: str) -> None:
    """Write an event at once, and commit it when the file `close` appears in the folder."""
    from tests.verification.faults.bank.upstream import shield, transfer

    # A service's own connections, unlike a relay's, may be idle without a limit.
    engine = create_engine(shield.settings.url)
    with engine.begin() as connection, Session(connection) as session:
        # A Session on the caller's own Connection inserts its events at once.
        transfer(session, new_event_id(), account, 1)
        session.flush()
        (Path(folder) / "open").touch()
        while not (Path(folder) / "close").exists():
            time.sleep(0.02)
