"""Records as events of a group: decoded, and sent by a source that its handler accepts."""

from __future__ import annotations

from collections.abc import Callable

from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.events import Envelope
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent


def read_arrival(
    record: ReceivedRecord,
    *,
    group: ConsumerGroup,
    decode: Callable[[ReceivedRecord], Envelope],
    passed_over: Callable[[Envelope], None] | None = None,
) -> IncomingEvent | None:
    """Decode a record for a group; None where the group has no handler for its event.

    `passed_over` receives such events. None also for a record of a foreign topic that its decoder
    leaves out. Raises UndecodableRecord for a record that the group must not handle.
    """
    foreign = group.foreign_topic(record.topic)
    if foreign is None:
        envelope = decode(record)
    else:
        found = foreign.read(record, group.types_of(foreign.logical_name))
        if found is None:
            return None
        envelope = found
    handler = group.handler_of(envelope.type, envelope.kind)
    if handler is None:
        if passed_over is not None:
            passed_over(envelope)
        return None
    handler.check_authority(envelope)
    lease = handler.lease if handler.shares_transactions(envelope.kind) else None
    return IncomingEvent(envelope=envelope, record=record, lease=lease)
