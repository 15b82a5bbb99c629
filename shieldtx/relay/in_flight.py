"""The claims of a relay that are not settled yet: settled in order, or withdrawn."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

from shieldtx.domain.log_fields import MOST_NAMED
from shieldtx.ports.relay import RelayStore, Settlement
from shieldtx.relay.outcome import BatchOutcome, PermanentFailure
from shieldtx.relay.permanent_failure import PermanentFailures
from shieldtx.relay.result import RelayResult
from shieldtx.relay.sender import ClaimedBatch

log = logging.getLogger(__name__)

_INTERRUPTED = "interrupted while it was sent: the broker may have it"


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingSettlement:
    """The outcomes of one claim's events, except permanent failures."""

    token: UUID
    """The token of the claim."""
    settlement: Settlement
    outage: str = ""
    """Why the broker is unavailable; reported by the pass that writes this back."""


PendingWriteBack: TypeAlias = PendingSettlement | PermanentFailure


class InFlight:
    """The claims of one relay that are not settled.

    Used by one thread at a time; `name` and `withdraw_former` also by a renewal during a pass.

    Up to four things are in flight:

    - *Pending write-backs* of events that were sent, or released unsent. They are completed in the
      order in which they were added; a failed one stays first, for the next `settle`.
    - *The batch being sent*: the broker may have it, whatever the result of the pass.
    - *The batch claimed ahead*, during the publication of the previous batch.
    - *An ambiguous claim*, whose response was lost: the database may have executed it, or may do so
      later. The relay withdraws it before another claim, or later events of its keys would overtake
      it; and after all write-backs, so that no event of it was sent.
    """

    def __init__(
        self,
        *,
        relay: str,
        store: RelayStore,
        failures: PermanentFailures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the claims of the relay of this name, with nothing in flight."""
        self._store = store
        self._failures = failures
        self._clock = clock
        self._first_name = self._name = relay
        self._withdrawals = 0
        self._pending: deque[PendingWriteBack] = deque()
        self._ahead: ClaimedBatch | None = None
        self._unsent: set[UUID] = set()
        """Tokens of claimed batches of which nothing was sent, and nothing is written back."""
        self._sending: PendingSettlement | None = None
        """The write-back of the batch being sent, for the case that its outcome stays unknown."""
        self._has_ambiguous_claim = False
        self._former_names: deque[str] = deque()
        """Names under which the relay may own shards, in which a late claim would find rows."""
        self._last_claim = clock()

    @property
    def name(self) -> str:
        """The relay's name in the tables, which each withdrawal changes."""
        return self._name

    @property
    def is_settled(self) -> bool:
        """Whether no batch is being sent, no write-back is pending and no claim is ambiguous."""
        return not (self._sending or self._pending or self._has_ambiguous_claim)

    @property
    def is_sending(self) -> bool:
        """Whether a batch is being sent, or was being sent when a pass was interrupted."""
        return self._sending is not None

    @property
    def has_pending(self) -> bool:
        """Whether a write-back is pending."""
        return bool(self._pending)

    # --- claims -----------------------------------------------------------------------------------

    def claim(self, limit: int) -> ClaimedBatch:
        """Claim up to `limit` due events; the claim is ambiguous where the database raises."""
        since = self._last_claim = self._clock()
        try:
            claim = self._store.claim(relay=self._name, limit=limit)
            if claim.events:
                self._unsent.add(claim.token)
        except BaseException:
            self._has_ambiguous_claim = True
            raise
        return ClaimedBatch(claim, since)

    def until_due(self, *, within: timedelta) -> timedelta | None:
        """Return the time until the next delayed event is due; None: none is `within`.

        Negative for an event that became due since the last claim.
        """
        since = timedelta(seconds=self._clock() - self._last_claim)
        return self._store.until_due(relay=self._name, since=since, within=within)

    def keep_ahead(self, batch: ClaimedBatch) -> None:
        """Keep a claimed batch for the next pass: all events before it are acknowledged."""
        self._ahead = batch

    def take_ahead(self) -> ClaimedBatch | None:
        """Return the batch claimed ahead, which the caller publishes."""
        ahead, self._ahead = self._ahead, None
        return ahead

    @contextmanager
    def ambiguous_if_abandoned(self) -> Iterator[None]:
        """Mark a claim that an error leaves unsent as ambiguous: it is withdrawn before the next.

        An error that no `except Exception` catches (SystemExit from a hook or a local rollback,
        KeyboardInterrupt, a panic of an extension) may occur anywhere: then every unsent claim is
        ambiguous.
        """
        try:
            yield
        except BaseException as error:
            kept = {self._ahead.claim.token} if self._ahead else set()
            if self._unsent - kept or not isinstance(error, Exception):
                # The withdrawal also covers the batch claimed ahead.
                self._ahead = None
                self._unsent.clear()
                self._has_ambiguous_claim = True
            raise

    def begin_send(self, batch: ClaimedBatch) -> None:
        """Record that the broker may have the batch until `add` records its outcome."""
        token = batch.claim.token
        unconfirmed = Settlement(unconfirmed=batch.event_ids, reason=_INTERRUPTED)
        self._sending = PendingSettlement(token=token, settlement=unconfirmed)
        self._unsent.discard(token)

    # --- write-backs ------------------------------------------------------------------------------

    def add(self, outcome: BatchOutcome, *, outage: str) -> None:
        """Add the write-backs of a batch that was sent."""
        self._pending.append(
            PendingSettlement(token=outcome.token, settlement=outcome.settlement, outage=outage)
        )
        self._pending.extend(outcome.permanent_failures)
        self._sending = None

    def add_interrupted(self) -> None:
        """Add the write-back of a batch whose outcome stays unknown: its attempts do not count.

        No event of the batch is being sent any more when this is called.
        """
        if self._sending is not None:
            self._pending.append(self._sending)
            self._sending = None

    def release_ahead(self, reason: str) -> bool:
        """Add the write-back of the batch claimed ahead, which was not sent; False: there is none.

        Its attempts do not count.
        """
        ahead = self._ahead
        if ahead is None:
            return False
        settlement = Settlement(unsent=ahead.event_ids, reason=reason)
        # In this order: an error in between must not forget the batch.
        self._pending.append(PendingSettlement(token=ahead.claim.token, settlement=settlement))
        self._unsent.discard(ahead.claim.token)
        self._ahead = None
        return True

    def settle(self) -> RelayResult:
        """Complete the pending write-backs; then withdraw claims without a response.

        Errors of the database are raised; the next call continues where this one stopped.
        """
        done, partly_lost = RelayResult(), list[UUID]()
        while self._pending:
            step = self._pending[0]
            written = self._write_back(step)
            done = done.then(written)
            if written.lost:
                partly_lost += _ids_of(step)
            self._pending.popleft()
        if self._has_ambiguous_claim:
            self.withdraw()
        while self._former_names:
            self._store.withdraw(relay=self._former_names[0], renamed=self._name)
            self._former_names.popleft()
        if done.lost:
            log.warning(
                "another relay took events over",
                extra={
                    "action": "events_taken_over",
                    "relay": self._name,
                    "count": done.lost,
                    "event_ids": [str(event_id) for event_id in partly_lost[:MOST_NAMED]],
                },
            )
        return done

    def withdraw(self) -> None:
        """Undo an ambiguous claim, and rename the relay: a claim that runs later finds no rows."""
        renamed = f"{self._first_name}+{self._withdrawals + 1}"
        self._store.withdraw(relay=self._name, renamed=renamed)
        self._name = renamed
        self._withdrawals += 1
        self._has_ambiguous_claim = False

    def withdraw_former(self, name: str) -> None:
        """Make the next `settle` withdraw the leases under a former name of the relay.

        A withdrawal overtook a renewal under that name: a late ambiguous claim would find rows in
        the renewed shards.
        """
        self._former_names.append(name)

    def _write_back(self, step: PendingWriteBack) -> RelayResult:
        if isinstance(step, PermanentFailure):
            return self._failures.record(step)
        if not len(step.settlement):
            return RelayResult(outage=step.outage)
        kept = self._store.settle(step.token, step.settlement)
        return RelayResult.of(step.settlement, kept=kept, outage=step.outage)


def _ids_of(step: PendingWriteBack) -> list[UUID]:
    """Return the ids of the events whose states a step writes back."""
    if isinstance(step, PermanentFailure):
        return [step.event.envelope.id]
    its = step.settlement
    retried = [retry.event_id for retry in its.retries]
    return [*its.processed, *its.unsent, *its.unconfirmed, *retried]
