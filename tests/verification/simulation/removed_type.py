"""Events of a type whose handler was removed: they are in the inbox, and block no others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shieldtx.consumer.consumer import Consumer
from shieldtx.domain.events import Envelope
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent
from tests.verification.simulation import assembly
from tests.verification.simulation.banks import HANDLER_LEASE, REMOVED_TYPE, TOPIC
from tests.verification.simulation.database import EPOCH, InboxRow
from tests.verification.simulation.inbox import MemoryInboxStore
from tests.verification.simulation.processes import Process

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

GROUP = "bank"


def receive(world: World) -> None:
    """Let a worker of an earlier release receive the events, and start every third of them."""
    records = [_incoming(world, number) for number in range(world.config.removed)]
    MemoryInboxStore(world.b, by="an earlier release").receive(GROUP, records, [])


def is_left(row: InboxRow) -> bool:
    """Return whether a row is open because no worker has a handler for it."""
    return row.settled_at is None and row.envelope.type == REMOVED_TYPE


def declare_again(world: World) -> list[Process[Consumer]]:
    """Start a worker of a release with the handler, if there are events for it."""
    if not any(map(is_left, world.b.inbox.values())):
        return []
    world.say("a release has the handler of {} events again", world.config.removed)
    return [assembly.consumer(world, "B", GROUP, world.config.consumers, has_removed=True)]


def _incoming(world: World, number: int) -> IncomingEvent:
    envelope = Envelope(
        id=world.next_id(),
        type=REMOVED_TYPE,
        source="A",
        topic=TOPIC,
        payload=json.dumps({"number": number}),
        time=EPOCH,
        key=(None, "removed")[number % 2],
    )
    nowhere: dict[str, Any] = {"topic": TOPIC, "partition": 0, "offset": -1 - number}
    record = ReceivedRecord(**nowhere, key=None, value=None)
    return IncomingEvent(envelope, record, lease=None if number % 3 else HANDLER_LEASE)
