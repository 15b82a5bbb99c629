"""Sends a claimed batch: converts its events into records, and publishes them within the lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.log_fields import events_fields
from shieldtx.domain.reasons import loggable, reason_of
from shieldtx.errors import ShieldTxError
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.broker import Backpressure, Delivery, DeliveryOutcome, Publisher, Record
from shieldtx.ports.relay import Claim

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """Claimed events that are not settled yet."""

    claim: Claim
    since: float
    """The time just before the claim, by the process's clock."""

    @property
    def event_ids(self) -> list[UUID]:
        """The events' ids, in the order of sending."""
        return [event.envelope.id for event in self.claim.events]


class Sender:
    """Publishes batches, each within its lease."""

    def __init__(
        self,
        publisher: Publisher,
        encode: Callable[[Envelope], Record],
        *,
        lease: timedelta,
        timeout: timedelta,
        clock: Callable[[], float] = time.monotonic,
        hooks: Hooks | None = None,
    ) -> None:
        self._publisher = publisher
        self._encode = encode
        self._hooks = hooks or Hooks()
        # A tenth of the lease is kept for the write-back.
        self._reserve = lease / 10
        self._timeout = timeout.total_seconds()
        self._clock = clock

    def send(self, batch: ClaimedBatch) -> Sequence[Delivery]:
        """Send a batch's events while the lease lasts; without a lease nothing is sent.

        No `Exception` is raised: after an unforeseen error all events are UNCONFIRMED.
        """
        if not self._hooks.has_send_hooks:
            return self._deliveries(batch, with_offsets=False)
        claims, waited = batch.claim.events, self._clock() - batch.since
        self._hooks.sending(claims, waited=waited)
        began = self._clock()
        deliveries = self._deliveries(batch, with_offsets=True)
        self._hooks.sent(claims, deliveries, waited=waited, took=self._clock() - began)
        return deliveries

    def pressure(self) -> Backpressure:
        """Return how much the last batch has overloaded the broker."""
        return self._publisher.pressure()

    def close(self) -> None:
        """Close the connections to the broker."""
        self._publisher.close()

    def _deliveries(self, batch: ClaimedBatch, *, with_offsets: bool) -> Sequence[Delivery]:
        try:
            return self._send(batch, with_offsets=with_offsets)
        except Exception as error:
            log.exception(
                "publishing failed",
                exc_info=loggable(error),
                extra={
                    "action": "publishing_failed",
                    **events_fields([event.envelope for event in batch.claim.events]),
                },
            )
            reason = f"publishing failed: {reason_of(error)}"
            ambiguous = Delivery(outcome=DeliveryOutcome.UNCONFIRMED, reason=reason)
            return [ambiguous] * len(batch.claim.events)

    def _send(self, batch: ClaimedBatch, *, with_offsets: bool) -> Sequence[Delivery]:
        claim = batch.claim
        left = (claim.lease_left - self._reserve).total_seconds()
        timeout = min(left - (self._clock() - batch.since), self._timeout)
        if timeout <= 0:
            deferred = Delivery(
                outcome=DeliveryOutcome.DEFERRED, reason="the lease was about to run out"
            )
            return [deferred] * len(claim.events)
        records: list[Record] = []
        unsendable: dict[int, Delivery] = {}
        for index, event in enumerate(claim.events):
            try:
                records.append(self._encode(event.envelope))
            except ShieldTxError as error:
                unsendable[index] = Delivery(outcome=DeliveryOutcome.REJECTED, reason=str(error))
        sent = self._publisher.publish(records, timeout=timeout, with_offsets=with_offsets)
        if not unsendable:
            return sent
        responses = iter(sent)
        return [unsendable.get(index) or next(responses) for index in range(len(claim.events))]
