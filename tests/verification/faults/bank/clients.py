"""The upstream bank's clients: a process that makes transfers and keeps their journal."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shieldtx.domain.events import new_event_id
from shieldtx.errors import ShieldTxError
from tests.verification.faults.bank import MARKER
from tests.verification.faults.failpoints import Struck
from tests.verification.faults.journal import Journal

log = logging.getLogger(__name__)

PAUSE_AFTER_FAILURE = 0.1
"""Seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """The work of a process of clients."""

    url: str
    journal: str
    transfers: int
    """Total number of operations to try."""
    accounts: Sequence[str]
    clients: int = 4
    seed: int = 1
    refused: float = 0.1
    """The share that downstream refuses."""
    ways: Sequence[str] = ("at once", "slowly")
    """How the transfers are refused, see Transfer."""
    undo: str = ""
    pause: float = 0.0
    """Seconds after each operation."""


def work(orders: Orders) -> None:
    """Try all transfers, each client its share of them, one after the other."""
    # Built from the environment of its process, as in every application.
    from tests.verification.faults.bank.upstream import shield

    engine = create_engine(
        orders.url, pool_size=orders.clients, connect_args={"connect_timeout": 5}
    )
    with ThreadPoolExecutor(orders.clients) as pool:
        shares = [
            orders.transfers // orders.clients + (n < orders.transfers % orders.clients)
            for n in range(orders.clients)
        ]
        clients = [
            pool.submit(_client, orders, engine, share, number)
            for number, share in enumerate(shares)
        ]
        for client in clients:
            client.result()
    engine.dispose()
    shield.close()


def _client(orders: Orders, engine: Engine, share: int, number: int) -> None:
    chance = random.Random(orders.seed * 1000 + number)
    journal = Journal(Path(orders.journal))
    for _ in range(share):
        operation = new_event_id()
        account = chance.choice(orders.accounts)
        refuse = ""
        if chance.random() < orders.refused:
            refuse = chance.choice(orders.ways)
        undo = orders.undo if refuse else ""
        fate = {"refuse": refuse, "undo": undo, "note": MARKER}
        journal.begin(operation)
        answer = _try(engine, operation, account, chance.randint(1, 100), fate)
        journal.end(operation, answer=answer)
        if orders.pause:
            time.sleep(orders.pause)
    journal.close()


def _try(engine: Engine, operation: UUID, account: str, amount: int, fate: dict[str, str]) -> str:
    """Make one transfer; the answer claims only what a client can know."""
    from tests.verification.faults.bank.upstream import shield, transfer

    committing = False
    try:
        with Session(engine) as session:
            transfer(session, operation, account, amount, **fate)
            shield.breaker.reach("commit", "before")
            committing = True
            session.commit()
            shield.breaker.reach("commit", "after")
    except (DBAPIError, ShieldTxError, Struck) as error:
        log.info("transfer %s: %s", operation, error)
        time.sleep(PAUSE_AFTER_FAILURE)
        # The event's INSERT is part of the commit too, but this process cannot observe it.
        return "info" if committing else "fail"
    return "ok"
