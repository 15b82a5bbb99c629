"""How each event of a claim ends, once the broker's answers are there: a decision, not a deed."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from shieldtx.domain.retry import RetryPolicy
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from shieldtx.ports.relay import Claim, ClaimedEvent, Retry, Settlement

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What a claim owes the table, and what it told about the broker."""

    settlement: Settlement
    """To be written down in one transaction."""
    hopeless: Sequence[tuple[ClaimedEvent, str]]
    """Never to be delivered, and why; each is a transaction of its own, with its local rollback."""
    away: Sequence[str]
    """For each event that found no broker, what became of it."""
    heard: bool
    """The broker has answered for some event."""

    @property
    def clean(self) -> bool:
        """Whether every event was acknowledged."""
        return not self.hopeless and len(self.settlement.processed) == len(self.settlement)


def ending_of(
    claim: Claim, deliveries: Sequence[Delivery], retry_of: Callable[[str], RetryPolicy]
) -> Ending:
    """Decide how each event of a claim ends; `retry_of` tells an event type's retries."""
    ended: dict[DeliveryOutcome, list[tuple[ClaimedEvent, str]]] = defaultdict(list)
    for claimed, delivery in zip(claim.events, deliveries, strict=True):
        ended[delivery.outcome].append((claimed, delivery.reason))
    retries: list[Retry] = []
    hopeless = ended[DeliveryOutcome.REJECTED]
    for claimed, reason in ended[DeliveryOutcome.REFUSED]:
        delay = retry_of(claimed.envelope.type).delay_after(claimed.attempts)
        if delay is None:
            hopeless.append((claimed, f"{reason} (all {claimed.attempts} attempts used up)"))
        else:
            retries.append(Retry(event_id=claimed.envelope.id, delay=delay, reason=reason))
    if retries:
        log.warning(
            "%d events refused for now, tried again later: %s", len(retries), retries[0].reason
        )
    away = [*ended[DeliveryOutcome.UNCONFIRMED], *ended[DeliveryOutcome.UNSENT]]
    back = [*away, *ended[DeliveryOutcome.DEFERRED]]
    return Ending(
        settlement=Settlement(
            processed=_ids(ended[DeliveryOutcome.ACKNOWLEDGED]),
            unsent=_ids([*ended[DeliveryOutcome.UNSENT], *ended[DeliveryOutcome.DEFERRED]]),
            unconfirmed=_ids(ended[DeliveryOutcome.UNCONFIRMED]),
            retries=retries,
            reason=back[0][1] if back else "",
        ),
        hopeless=hopeless,
        away=[reason for _, reason in away],
        heard=bool(ended[DeliveryOutcome.ACKNOWLEDGED] or ended[DeliveryOutcome.REFUSED]),
    )


def _ids(events: Sequence[tuple[ClaimedEvent, str]]) -> list[UUID]:
    return [claimed.envelope.id for claimed, _ in events]
