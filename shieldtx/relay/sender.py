"""Sending a claim: its events become records, and go out while the lease lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from shieldtx.domain.events import Envelope
from shieldtx.domain.reasons import loggable, reason_of
from shieldtx.domain.retry import RetryPolicy
from shieldtx.errors import ShieldTxError
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.broker import Backpressure, Delivery, DeliveryOutcome, Publisher, Record
from shieldtx.ports.relay import Claim
from shieldtx.relay.outcome import Ending

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """Claimed events that are not settled yet."""

    claim: Claim
    since: float
    """Before the claim, by the process's clock."""


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
        # A tenth of the lease is kept for writing the end down.
        self._reserve = lease / 10
        self._timeout = timeout.total_seconds()
        self._clock = clock

    def send(self, batch: Batch) -> Sequence[Delivery]:
        """Send a claim's events while the lease lasts; without a lease nothing is sent.

        Never raises: what goes wrong unforeseen leaves all of them in doubt.
        """
        if not self._hooks.has_send_hooks:
            return self._answers(batch, with_offsets=False)
        claims, waited = batch.claim.events, self._clock() - batch.since
        self._hooks.sending(claims, waited=waited)
        began = self._clock()
        deliveries = self._answers(batch, with_offsets=True)
        self._hooks.sent(claims, deliveries, waited=waited, took=self._clock() - began)
        return deliveries

    def pressure(self) -> Backpressure:
        """Tell how hard the last batch has pressed the broker."""
        return self._publisher.pressure()

    def close(self) -> None:
        """Let go of the broker."""
        self._publisher.close()

    def _answers(self, batch: Batch, *, with_offsets: bool) -> Sequence[Delivery]:
        try:
            return self._send(batch, with_offsets=with_offsets)
        except Exception as error:
            log.exception("publishing failed", exc_info=loggable(error))
            reason = f"publishing failed: {reason_of(error)}"
            unclear = Delivery(outcome=DeliveryOutcome.UNCONFIRMED, reason=reason)
            return [unclear] * len(batch.claim.events)

    def _send(self, batch: Batch, *, with_offsets: bool) -> Sequence[Delivery]:
        claim = batch.claim
        left = (claim.lease_left - self._reserve).total_seconds()
        timeout = min(left - (self._clock() - batch.since), self._timeout)
        if timeout <= 0:
            held = Delivery(
                outcome=DeliveryOutcome.DEFERRED, reason="the lease was about to run out"
            )
            return [held] * len(claim.events)
        records: list[Record] = []
        unsendable: dict[int, Delivery] = {}
        for place, claimed in enumerate(claim.events):
            try:
                records.append(self._encode(claimed.envelope))
            except ShieldTxError as error:
                unsendable[place] = Delivery(outcome=DeliveryOutcome.REJECTED, reason=str(error))
        sent = self._publisher.publish(records, timeout=timeout, with_offsets=with_offsets)
        if not unsendable:
            return sent
        answers = iter(sent)
        return [unsendable.get(place) or next(answers) for place in range(len(claim.events))]


class Outage:
    """Leaves a broker alone that does not answer, longer each time."""

    def __init__(self, pause: RetryPolicy, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = pause
        self._clock = clock
        self._failures = 0
        self._paused_until = 0.0

    @property
    def is_pausing(self) -> bool:
        """Whether nothing is to be sent yet."""
        return self._clock() < self._paused_until

    @property
    def is_on(self) -> bool:
        """Whether a single event has to find out first if the broker is back."""
        return self._failures > 0

    def note(self, ending: Ending) -> str:
        """Learn from what was sent; return what is wrong with the broker, "" for nothing."""
        if not ending.away:
            if ending.heard:
                self._failures = 0
            return ""
        self._failures += 1
        pause = self._pause.delay_after(min(self._failures, self._pause.max_attempts - 1))
        self._paused_until = self._clock() + (pause or self._pause.longest).total_seconds()
        log.warning(
            "broker unavailable, %d events given back: %s", len(ending.away), ending.away[0]
        )
        return ending.away[0]
