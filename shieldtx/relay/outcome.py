"""Decides the outcome of each event of a sent batch from the broker's responses."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.log_fields import events_fields
from shieldtx.domain.retry import RetryPolicy
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from shieldtx.ports.relay import Claim, ClaimedEvent, Retry, Settlement

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PermanentFailure:
    """A claimed event that no further attempt would deliver."""

    token: UUID
    """The token of its claim."""
    event: ClaimedEvent
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOutcome:
    """The write-backs of a sent batch, and the state of the broker that the batch showed."""

    token: UUID
    """The token of the batch's claim."""
    settlement: Settlement
    """Written back in one transaction."""
    permanent_failures: Sequence[PermanentFailure]
    """Each written back in a transaction of its own, with its local rollback."""
    outage_reasons: Sequence[str]
    """One for each event that did not reach the broker, as far as the relay knows."""
    broker_responded: bool
    """Whether the broker has acknowledged or refused some event."""

    @property
    def all_acknowledged(self) -> bool:
        """Whether the broker has acknowledged every event."""
        return not self.permanent_failures and len(self.settlement.processed) == len(
            self.settlement
        )


def decide_outcomes(
    claim: Claim, deliveries: Sequence[Delivery], retry_of: Callable[[str], RetryPolicy]
) -> BatchOutcome:
    """Decide the outcome of each event of a claim; `retry_of` returns a type's retry policy."""
    by_outcome: dict[DeliveryOutcome, list[tuple[ClaimedEvent, str]]] = defaultdict(list)
    for event, delivery in zip(claim.events, deliveries, strict=True):
        by_outcome[delivery.outcome].append((event, delivery.reason))
    retries: list[Retry] = []
    refused: list[Envelope] = []
    permanent = by_outcome[DeliveryOutcome.REJECTED]
    for event, reason in by_outcome[DeliveryOutcome.REFUSED]:
        delay = retry_of(event.envelope.type).delay_after(event.attempts)
        if delay is None:
            permanent.append((event, f"{reason} (all {event.attempts} attempts used up)"))
        else:
            retries.append(Retry(event_id=event.envelope.id, delay=delay, reason=reason))
            refused.append(event.envelope)
    if retries:
        log.warning(
            "events refused, sent again later",
            extra={
                "action": "events_refused",
                **events_fields(refused),
                "reason": retries[0].reason,
            },
        )
    unconfirmed = by_outcome[DeliveryOutcome.UNCONFIRMED]
    unsent = by_outcome[DeliveryOutcome.UNSENT]
    deferred = by_outcome[DeliveryOutcome.DEFERRED]
    released = [*unconfirmed, *unsent, *deferred]
    return BatchOutcome(
        token=claim.token,
        settlement=Settlement(
            processed=_ids(by_outcome[DeliveryOutcome.ACKNOWLEDGED]),
            unsent=_ids([*unsent, *deferred]),
            unconfirmed=_ids(unconfirmed),
            retries=retries,
            reason=released[0][1] if released else "",
        ),
        permanent_failures=[
            PermanentFailure(token=claim.token, event=event, reason=reason)
            for event, reason in permanent
        ],
        outage_reasons=[reason for _, reason in [*unconfirmed, *unsent]],
        broker_responded=bool(
            by_outcome[DeliveryOutcome.ACKNOWLEDGED] or by_outcome[DeliveryOutcome.REFUSED]
        ),
    )


def _ids(events: Sequence[tuple[ClaimedEvent, str]]) -> list[UUID]:
    return [event.envelope.id for event, _ in events]
