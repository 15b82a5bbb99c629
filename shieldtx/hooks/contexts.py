"""What hooks are given: the facts of one send or one attempt."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from shieldtx.domain.states import TxKind
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from shieldtx.ports.relay import ClaimedEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class SendContext:
    """One event in the hands of a relay; never its payload."""

    event_id: UUID
    type: str
    source: str
    topic: str
    """The logical topic."""
    kind: TxKind
    key: str | None
    attempt: int
    """1 for the first; one that a broker's outage cost is not counted, and comes again."""
    waited: float
    """Seconds between the claim and the handing over to the broker's client."""
    outcome: DeliveryOutcome | None = None
    """How it ended; None before it did."""
    error: str = ""
    """Why it was not acknowledged."""
    took: float | None = None
    """Seconds from the handing over to the answer, of all that was sent in one batch with it."""
    partition: int | None = None
    offset: int | None = None
    """Where the record lies; None where the broker did not say."""


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
    """Where its record lies; None of a row that came without one."""
    outcome: AttemptOutcome | None = None
    """How the attempt ended; None before it did. `after_consume` is called for APPLIED,
    COMPENSATED and MOOT, `on_consume_error` for all others."""
    error: str = ""
    exception: BaseException | None = None
    """What the handler raised, unreduced: a database error's text may contain values of rows. None
    where its process had died over the last attempt."""
    took: float | None = None
    """Seconds from before its handler to the commit that it shared, or to the failure."""


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
