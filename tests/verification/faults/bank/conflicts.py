"""Clients whose transactions do not simply commit; each function runs in a process of its own.

Each function raises if its event did not happen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import create_engine, text
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shieldtx.domain.events import new_event_id
from tests.verification.faults.bank.journaled import (
    DEADLOCK_DETECTED,
    SERIALIZATION_FAILURE,
    journaled,
    sqlstate,
)
from tests.verification.faults.journal import Journal

log = logging.getLogger(__name__)

Step: TypeAlias = Callable[[], object]

AMOUNT = 7
MEET_WITHIN_S = 20.0


class SomethingElseWentWrong(Exception):
    """An error of the business code while all databases work."""


def raise_in_the_middle(url: str, journal: str, accounts: Sequence[str]) -> None:
    """Take from each account in a transaction that an exception ends before its COMMIT."""
    from tests.verification.faults.bank.upstream import shield, transfer

    engine, notes = create_engine(url), Journal(Path(journal))
    for account in accounts:
        operation = new_event_id()
        try:
            with journaled(engine, notes, operation) as session:
                transfer(session, operation, account, AMOUNT)
                raise SomethingElseWentWrong  # noqa: TRY301  as the business code would
        except SomethingElseWentWrong:
            log.warning("an exception has ended transfer %s", operation)
    shield.close()


def roll_savepoints_back(url: str, journal: str, accounts: Sequence[str]) -> None:
    """Take from each account three times in one transaction: a savepoint for the second and third.

    The second is rolled back with its savepoint, so only the first and the third are committed.
    """
    from tests.verification.faults.bank.upstream import shield, transfer

    engine, notes = create_engine(url), Journal(Path(journal))
    for account in accounts:
        first, second, third = (new_event_id() for _ in range(3))
        with journaled(engine, notes, first, third) as session:
            transfer(session, first, account, AMOUNT)
            notes.begin(second)
            savepoint = session.begin_nested()
            transfer(session, second, account, AMOUNT)
            savepoint.rollback()
            notes.end(second, answer="fail")
            with session.begin_nested():
                transfer(session, third, account, AMOUNT)
        log.warning("a savepoint was rolled back with transfer %s", second)
    shield.close()


def take_while_committing(url: str, journal: str, accounts: Sequence[str]) -> None:
    """Take from each account when its session commits already, in two phases."""
    from tests.verification.faults.bank.upstream import shield, transfer

    engine, notes = create_engine(url), Journal(Path(journal))
    for account in accounts:
        operation = new_event_id()

        def take(session: Session, operation: UUID = operation, account: str = account) -> None:
            transfer(session, operation, account, AMOUNT)

        with journaled(engine, notes, operation, twophase=True) as session:
            # Runs after shieldtx's own listener, which is the last to insert in a one-phase commit.
            sqlalchemy_event.listen(session, "before_commit", take)
    shield.close()


def deadlock(url: str, journal: str, accounts: Sequence[str]) -> None:
    """Let two clients take from the same two accounts in opposite order; the loser tries again."""
    from tests.verification.faults.bank.upstream import shield, transfer

    engine, notes = create_engine(url), Journal(Path(journal))

    def client(order: Sequence[str], meet: Step) -> int:
        first, second = new_event_id(), new_event_id()

        def attempt(pause: Step) -> None:
            with journaled(engine, notes, first, second) as session:
                transfer(session, first, order[0], AMOUNT)
                pause()
                transfer(session, second, order[1], AMOUNT)

        return _insist(attempt, meet, DEADLOCK_DETECTED)

    _demand_a_loser(_together(client, accounts))
    shield.close()


def conflict(url: str, journal: str, accounts: Sequence[str]) -> None:
    """Let two SERIALIZABLE clients each read what the other writes; the loser tries again."""
    from tests.verification.faults.bank.upstream import shield, transfer

    engine = create_engine(url, isolation_level="SERIALIZABLE")
    notes = Journal(Path(journal))

    def client(order: Sequence[str], meet: Step) -> int:
        operation = new_event_id()

        def attempt(pause: Step) -> None:
            with journaled(engine, notes, operation) as session:
                session.execute(
                    text("SELECT balance FROM account WHERE name = :name"), {"name": order[1]}
                )
                pause()
                transfer(session, operation, order[0], AMOUNT)

        return _insist(attempt, meet, SERIALIZATION_FAILURE)

    _demand_a_loser(_together(client, accounts))
    shield.close()


def _insist(attempt: Callable[[Step], None], meet: Step, expected: str) -> int:
    """Try until the commit, with the same event ids; return the number of rollbacks."""
    lost = 0
    while True:
        try:
            # The next attempt meets no other transaction.
            attempt(meet if not lost else lambda: None)
        except DBAPIError as error:
            if sqlstate(error) != expected:
                raise
            lost += 1
            log.warning("rolled back by the server: %s", expected)
        else:
            return lost


def _together(client: Callable[[Sequence[str], Step], int], accounts: Sequence[str]) -> int:
    """Run two clients that meet in the middle; return the number of rollbacks."""
    one, other = accounts[:2]
    meet = partial(Barrier(2).wait, MEET_WITHIN_S)
    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(client, order, meet) for order in ((one, other), (other, one))]
        return sum(client.result() for client in clients)


def _demand_a_loser(lost: int) -> None:
    if not lost:
        raise AssertionError("the clients did not get in each other's way")
