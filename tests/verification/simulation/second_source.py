"""A second service that writes into the tables of the first: its events, its client, its checks.

One schema serves one source, but nothing refuses a second one. So its relay and those of the first
service share out the shards, and each leaves the events of the other source alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from shieldtx.domain.events import Envelope
from tests.verification.simulation.database import (
    EPOCH,
    DatabaseError,
    Entry,
    OutboxRow,
    Transaction,
)
from tests.verification.simulation.processes import Process

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

SOURCE = "C"
PREFIXES = {"A": "", "B": "", SOURCE: "c-"}
"""Prefix of each source for the names of its topics."""

WRITTEN, UNDONE = "notice", "undo notice"
"""Lines of the ledger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """An event of the second service; no group reads it."""

    number: int
    key: str | None
    type: str
    """Its own type, or the name of a type of the first service."""
    topic: str
    is_committed: bool


class SecondService:
    """Its client and its local rollback; both use the database of the first service."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._unwritten = list(world.config.notices)
        self._writing: set[str | None] = set()
        self.events: dict[int, UUID] = {}

    def write(self) -> None:
        """Let the client write its next notice, under a key that is not being written otherwise."""
        world = self._world
        free = [n for n in self._unwritten if n.key is None or n.key not in self._writing]
        if not free:
            return
        notice = free[0]
        self._unwritten.remove(notice)
        self._writing.add(notice.key)
        client: Process[None] = Process(world, "client C", lambda _: None)
        world.act(client, f"writes {notice}", lambda: self._write(client, notice))

    def undo(self, session: Transaction, envelope: Envelope) -> None:
        """Take back a notice that will never be delivered."""
        self._world.visit_running("handler", answered=False)
        _enter(session, UNDONE, json.loads(envelope.payload)["number"])

    def _write(self, client: Process[None], notice: Notice) -> None:
        event_id = self.events[notice.number] = self._world.next_id()
        try:
            with self._world.a.transaction() as session:
                _enter(session, WRITTEN, notice.number)
                session.database.insert_outbox(session, _envelope_of(notice, event_id))
                client.before("commit of the notice")
                if not notice.is_committed:
                    raise DatabaseError("the client rolls back")
        finally:
            self._writing.discard(notice.key)
        client.after("commit of the notice")

    def outcomes(self, failed: Collection[UUID], withheld: str) -> Iterator[str]:
        """Yield notices without exactly one outcome; operators see `withheld` in the reasons.

        The check of the other events covers that each is published under its name.
        """
        database = self._world.a
        entries = Counter((e.what, e.transfer) for e in database.ledger)
        for number, event_id in self.events.items():
            row: OutboxRow | None = database.written.get(event_id)
            undone = entries[UNDONE, number]
            if entries[WRITTEN, number] != (row is not None):
                yield f"notice {number}: its data and its event do not agree"
            if row is None or event_id not in failed:
                if undone:
                    yield f"notice {number} was undone and has not failed"
            elif not undone and withheld not in (row.last_error or ""):
                yield f"notice {number} has failed without its local rollback"


def _envelope_of(notice: Notice, event_id: UUID) -> Envelope:
    return Envelope(
        id=event_id,
        type=notice.type,
        source=SOURCE,
        topic=notice.topic,
        payload=json.dumps({"number": notice.number}),
        time=EPOCH,
        key=notice.key,
        biz_key=f"notice {notice.number}",
    )


def _enter(session: Transaction, what: str, number: int) -> None:
    entry = Entry(what, number, 0)
    session.write(lambda: session.database.ledger.append(entry))
