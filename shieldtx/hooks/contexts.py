"""Contexts: the arguments of hooks, with the facts of one send or one attempt."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from shieldtx.domain.states import TxKind
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from shieldtx.ports.relay import ClaimedEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class SendContext:
    """One event that a relay sends; never its payload."""

    event_id: UUID
    type: str
    source: str
    topic: str
    """The logical topic."""
    kind: TxKind
    key: str | None
    attempt: int
    """1 for the first; an attempt that a broker's outage ends is not counted: its number repeats.
    """
    waited: float
    """Seconds between the claim and the call of the broker's client."""
    outcome: DeliveryOutcome | None = None
    """Outcome of the send; None before the send."""
    error: str = ""
    """Why the event was not acknowledged."""
    took: float | None = None
    """Seconds from the call of the broker's client to its result, for the event's whole batch."""
    partition: int | None = None
    offset: int | None = None
    """Offset of the record; None where the broker did not return it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumeContext:
    """One attempt of a consumer group at an event; never the event's payload."""

    event_id: UUID
    type: str
    source: str
    topic: str
    """The logical topic."""
    kind: TxKind
    key: str | None
    group: str
    attempt: int
    """1 for the first."""
    partition: int | None
    offset: int | None
    """Offset of the record; None for a row that did not come from a record."""
    outcome: AttemptOutcome | None = None
    """Outcome of the attempt; None before its end.

    `after_consume` is called for APPLIED, COMPENSATED and MOOT, `on_consume_error` for all others.
    """
    error: str = ""
    exception: BaseException | None = None
    """The handler's exception, unmasked: a database error's text may contain values of rows.

    None where the process died during the last attempt.
    """
    took: float | None = None
    """Seconds from the call of its handler to the shared commit, or to the failure."""


def send_context_of(
    claimed: ClaimedEvent,
    waited: float,
    delivery: Delivery | None = None,
    took: float | None = None,
) -> SendContext:
    """Return the context of one claimed event, before or after its delivery."""
    envelope = claimed.envelope
    return SendContext(
        event_id=envelope.id,
        type=envelope.type,
        source=envelope.source,
        topic=envelope.topic,
        kind=envelope.kind,
        key=envelope.key,
        attempt=claimed.attempts,
        waited=waited,
        outcome=None if delivery is None else delivery.outcome,
        error="" if delivery is None else delivery.reason,
        took=took,
        partition=None if delivery is None else delivery.partition,
        offset=None if delivery is None else delivery.offset,
    )


def consume_context_of(
    attempt: Attempt,
    outcome: AttemptOutcome | None = None,
    *,
    error: str = "",
    exception: BaseException | None = None,
    took: float | None = None,
) -> ConsumeContext:
    """Return the context of one attempt, before or after its outcome."""
    envelope = attempt.envelope
    return ConsumeContext(
        event_id=envelope.id,
        type=envelope.type,
        source=envelope.source,
        topic=envelope.topic,
        kind=envelope.kind,
        key=envelope.key,
        group=attempt.group,
        attempt=attempt.number,
        partition=attempt.partition,
        offset=attempt.offset,
        outcome=outcome,
        error=error,
        exception=exception,
        took=took,
    )
