"""Dead letters and parked records, as they are read from their rows."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.store.statements.envelope_columns import envelope_of

Status = OutboxStatus | InboxStatus

REPLAY: dict[Status, Status] = {
    OutboxStatus.FAILED: OutboxStatus.INIT,
    InboxStatus.DEAD: InboxStatus.PROCESSING,
}
"""The states from which an operator may replay, and the states afterwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """An event's row in the outbox or, with a `group`, in the inbox of that group."""

    envelope: Envelope
    group: str | None
    """None if the event is in the outbox of this service."""
    status: Status
    attempts: int
    settled_at: datetime | None
    reason: str
    """The last error."""
    unconfirmed: bool
    """An attempt without confirmation may have delivered this event of the outbox."""

    def __str__(self) -> str:
        """Name the row."""
        where = "the outbox" if self.group is None else f"the inbox of group {self.group}"
        return f"event {self.envelope.id} in {where}"

    @property
    def can_be_replayed(self) -> bool:
        """Whether an operator may replay the dead letter."""
        return self.status in REPLAY

    @property
    def can_be_refused(self) -> bool:
        """Whether an operator may end the dead letter with its rollback event."""
        return self.status is InboxStatus.DEAD and self.envelope.kind is TxKind.COMMIT


@dataclass(frozen=True, kw_only=True, slots=True)
class ParkedRecord:
    """A record that could not become an inbox row, as it was received."""

    group: str
    record: ReceivedRecord
    reason: str
    parked_at: datetime
    digest: str = ""
    """Of the content: records of a topic and of a recreated topic may have the same offset."""
    discarded_at: datetime | None = None
    """None if the record waits for an operator."""

    def __str__(self) -> str:
        """Name the row."""
        return f"parked record {self.ref}"

    @property
    def ref(self) -> str:
        """The name of the record; offsets are not unique after a topic was recreated."""
        place = f"{self.group}/{self.record.topic}/{self.record.partition}/{self.record.offset}"
        return f"{place}/{self.digest}" if self.digest else place


def letter_of(row: Row[*tuple[Any, ...]]) -> DeadLetter:
    """Read an event from its row in the outbox or the inbox."""
    group = row.consumer_group
    return DeadLetter(
        envelope=envelope_of(row),
        group=group,
        status=OutboxStatus(row.status) if group is None else InboxStatus(row.status),
        attempts=row.attempts,
        settled_at=row.settled_at,
        reason=row.last_error or "",
        unconfirmed=row.unconfirmed,
    )


def parked_of(row: Row[*tuple[Any, ...]]) -> ParkedRecord:
    """Read a parked record from its row."""
    headers = json.loads(row.record_headers)
    return ParkedRecord(
        group=row.consumer_group,
        record=ReceivedRecord(
            topic=row.topic,
            partition=row.record_partition,
            offset=row.record_offset,
            key=row.record_key,
            value=row.record_value,
            headers=tuple(
                (name, None if value is None else base64.b64decode(value))
                for name, value in headers
            ),
        ),
        reason=row.reason,
        parked_at=row.parked_at,
        digest=row.digest,
        discarded_at=row.discarded_at,
    )
