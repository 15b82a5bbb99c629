"""The operator of the downstream bank: decides about the events that its handler has parked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shieldtx.domain.states import InboxStatus, TxKind
from tests.verification.simulation.database import DatabaseError, InboxRow
from tests.verification.simulation.inbox import MemoryInboxStore

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

OPERATOR = "operator"

MOST_REPLAYS = 5
"""After this many replays of each event without faults, a failing handler has succeeded."""


def parked(world: World) -> list[InboxRow]:
    """Return the events that are DEAD in the inbox of the downstream bank."""
    received = world.b.inbox.values()
    return [
        row
        for row in received
        if row.status is InboxStatus.DEAD and row.envelope.kind is TxKind.COMMIT
    ]


def decide(world: World) -> None:
    """Replay an event that was parked when it was listed; sometimes refuse it, or discard it."""
    world.listed += [row for row in parked(world) if row not in world.listed]
    if not world.listed:
        return
    row = world.listed[world.schedule.between(0, len(world.listed) - 1)]
    store, drawn = MemoryInboxStore(world.b, by=OPERATOR), world.schedule.between(0, 9)
    number = row.envelope.id.int & 0xFFFF
    try:
        if drawn == 0 and store.discard(row):
            world.discarded.add(row.envelope.id)
        elif drawn == 1:
            store.refuse_dead(row, rollback_id=world.next_id(), source="B")
        else:
            store.replay(row)
    except DatabaseError as error:
        world.say("an operator decides about {}: {!r}", number, error)
    else:
        world.say("an operator decides about {}: it is {}", number, row.status)


def replay_all(world: World) -> bool:
    """Replay all parked events; return whether there were any."""
    rows = parked(world)
    for row in rows:
        MemoryInboxStore(world.b, by=OPERATOR).replay(row)
        world.say("an operator replays {}", row.envelope.id.int & 0xFFFF)
    return bool(rows)
