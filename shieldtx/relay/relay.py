"""The relay: claims due events, publishes them, settles them; one pass is `run_once`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from datetime import timedelta

from shieldtx._executors import SingleThread
from shieldtx.domain.events import Envelope
from shieldtx.domain.retry import RetryPolicy
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.broker import Delivery, Publisher, Record
from shieldtx.ports.relay import LeaseStore, LocalRollback, RelayStore, ShardLeases
from shieldtx.relay.in_flight import InFlight
from shieldtx.relay.outcome import decide_outcomes
from shieldtx.relay.permanent_failure import PermanentFailures
from shieldtx.relay.result import RelayResult
from shieldtx.relay.sender import ClaimedBatch, Sender
from shieldtx.relay.settings import RelaySettings
from shieldtx.relay.shard_log import log_shards
from shieldtx.relay.throttle import AdaptiveBatchSize, CircuitBreaker

PART_OF_A_SHARD = 1 / 4
"""The part of a batch that one shard may fill; a claim of that size or more shows a backlog."""

CLAIMS_AT_A_TIME = 2
"""The number of claimed batches during a backlog: one is published while the next is claimed."""

RENEWALS_PER_LEASE = 4

_SHARDS_LEAVE = "deferred: the relay releases its shards"


class Relay:
    """Moves events from the outbox to the broker, in order per key.

    No transaction is open during publication. During a backlog, the next batch is claimed while a
    batch is published. It is sent only when every event of the previous batch is acknowledged, and
    released otherwise: no event overtakes an earlier event of its key with an unknown outcome.
    """

    def __init__(
        self,
        *,
        store: RelayStore,
        leases: LeaseStore,
        publisher: Publisher,
        encode: Callable[[Envelope], Record],
        settings: RelaySettings,
        retry_of: Callable[[str], RetryPolicy],
        local_rollbacks: Mapping[str, LocalRollback],
        knows: Callable[[Envelope], bool] = lambda _: True,
        clock: Callable[[], float] = time.monotonic,
        publish_thread: Executor | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Create a relay that has begun nothing yet.

        An event that this release does not know (`knows`) never fails permanently here: only a
        release that declares its type has its local rollback.

        `publish_thread` publishes a batch while the database settles the previous batch and claims
        the next one; by default the relay has its own thread.
        """
        self._settings = settings
        self._leases = leases
        self._retry_of = retry_of
        self._clock = clock
        self._publish_thread = publish_thread or SingleThread("shieldtx-publish")
        self._sender = Sender(
            publisher,
            encode,
            lease=settings.lease,
            timeout=settings.send_timeout,
            clock=clock,
            hooks=hooks,
        )
        name = settings.name
        self._breaker = CircuitBreaker(settings.outage_pause, relay=name, clock=clock)
        self._batch_size = AdaptiveBatchSize(settings.batch_size, relay=name, clock=clock)
        failures = PermanentFailures(
            store=store, retry_of=retry_of, local_rollbacks=local_rollbacks, knows=knows
        )
        self._in_flight = InFlight(relay=name, store=store, failures=failures, clock=clock)
        self._holding = ShardLeases(shards=frozenset(), relays=0, surplus=frozenset())
        self._has_renewed = False
        self._renew_at = clock()
        """When a pass renews the leases, unless another thread has done so before."""
        self._renewing: set[int] = set()
        """The threads that are renewing the leases now."""
        # Locked during a pass: shards are released between passes, when nothing is in flight.
        self._passing = threading.Lock()
        self._unreported: RelayResult | None = None
        """The result of settlements between passes: the next pass reports it."""

    @property
    def name(self) -> str:
        """The relay's first name in the tables."""
        return self._settings.name

    @property
    def shards(self) -> frozenset[int]:
        """The shards owned since the last renewal."""
        return self._holding.shards

    @property
    def until_renewal(self) -> timedelta:
        """Time until a pass renews the leases by itself."""
        return timedelta(seconds=max(0.0, self._renew_at - self._clock()))

    def renew(self) -> ShardLeases:
        """Extend the leases and distribute the shards again.

        A worker renews each quarter of the lease, in a thread of its own: a pass may take longer
        than the lease. Errors of the database are raised; the leases last until later renewals.
        """
        thread = threading.get_ident()
        self._renewing.add(thread)
        try:
            return self._renew()
        finally:
            self._renewing.discard(thread)

    def _renew_if_due(self) -> None:
        """Renew if no other thread does: at the start, and after half of the lease."""
        if self._clock() >= self._renew_at and not self._renewing:
            self.renew()

    def _renew(self) -> ShardLeases:
        name, before = self._in_flight.name, self._holding
        began, lease = self._clock(), self._settings.lease.total_seconds()
        try:
            self._renew_at = began + lease / 2
            self._holding = holding = self._leases.renew(relay=name, lease=self._settings.lease)
        except BaseException:
            self._renew_at = began + (lease / RENEWALS_PER_LEASE if before.shards else 0.0)
            raise
        # After a slow renewal, the next renewal of another thread has time to begin.
        self._renew_at = max(self._renew_at, self._clock() + lease / RENEWALS_PER_LEASE)
        self._has_renewed = True
        # Before the release, whose errors would hide the change from every later renewal.
        log_shards(name, before=before, now=holding)
        if holding.surplus:
            with self._passing, self._in_flight.ambiguous_if_abandoned():
                self._release_shards(holding.surplus, name)
        if name != self._in_flight.name:
            # A pass has withdrawn an ambiguous claim, which may still find the shards taken here.
            self._in_flight.withdraw_former(name)
        return holding

    def _release_shards(self, shards: frozenset[int], name: str) -> None:
        """Release shards if nothing of them is in flight; else a later renewal releases them."""
        self._end_interrupted_send()
        if self._in_flight.release_ahead(_SHARDS_LEAVE):
            self._settle_between_passes()
        if self._in_flight.is_settled and name == self._in_flight.name:
            self._leases.release(relay=name, shards=shards)

    def _settle_between_passes(self) -> None:
        self._unreported = self._reported(self._in_flight.settle())

    def run_once(self) -> RelayResult:
        """Make one pass: claim, publish, settle; during a backlog, the next pass settles.

        Errors of the database are raised. The next pass settles the batches that were sent before
        the error, and claims nothing until then.
        """
        if not self._has_renewed:
            self._renew_if_due()
        with self._passing, self._in_flight.ambiguous_if_abandoned():
            done = self._reported(self._pass())
        try:
            # After the write-backs, which must not wait for the renewal.
            self._renew_if_due()
        except BaseException:
            with self._passing:
                self._unreported = self._reported(done)
            raise
        return done

    def _reported(self, done: RelayResult) -> RelayResult:
        """Add the result of settlements that were not reported before."""
        earlier, self._unreported = self._unreported, None
        return done if earlier is None else earlier.then(done)

    def _pass(self) -> RelayResult:
        self._end_interrupted_send()
        batch = self._in_flight.take_ahead()
        if batch is None:
            settled = self._in_flight.settle()
            if settled.claimed:
                return replace(settled, backlog=True)
            if self._breaker.is_open:
                return RelayResult(outage="paused")
            if pause := self._batch_size.pause:
                return RelayResult(slowed=pause, backlog=True)
            batch = self._in_flight.claim(1 if self._breaker.is_probing else self._batch_size.size)
        if not batch.claim.events:
            return RelayResult()
        backlog = self._shows_backlog(batch)
        if self._in_flight.has_pending or (backlog and not self._batch_size.is_throttled):
            return self._publish_and_claim_ahead(batch, backlog=backlog)
        return self._publish_and_settle(batch, backlog=backlog)

    def _publish_and_settle(self, batch: ClaimedBatch, *, backlog: bool) -> RelayResult:
        """Publish a batch, the only one in flight, and settle it."""
        # A single event has probed the broker, or later events of its key waited for a retried
        # event.
        others_wait = self._breaker.is_probing or any(e.attempts > 1 for e in batch.claim.events)
        self._in_flight.begin_send(batch)
        self._record(batch, self._sender.send(batch))
        settled = self._in_flight.settle()
        return replace(settled, backlog=backlog or others_wait or settled.released > 0)

    def _publish_and_claim_ahead(self, batch: ClaimedBatch, *, backlog: bool) -> RelayResult:
        """Publish a batch; concurrently settle the previous one and claim the next of a backlog."""
        self._in_flight.begin_send(batch)
        publishing = self._publish_thread.submit(self._sender.send, batch)
        done, ahead = RelayResult(), None
        failure: BaseException | None = None
        try:
            done = self._in_flight.settle()
            if backlog and not self._holding.surplus and not self._batch_size.is_throttled:
                ahead = self._in_flight.claim(self._batch_size.size)
        except BaseException as error:  # noqa: BLE001  raised again when the batch's outcome is known
            failure = error
        try:
            may_follow = self._record(batch, publishing.result())
        except Exception as error:
            if failure is not None:
                # This error may be one that ends the process.
                raise failure from error
            raise
        if failure is not None:
            raise failure
        if ahead is not None and ahead.claim.events:
            self._in_flight.keep_ahead(ahead)
            if obstacle := self._obstacle(may_follow=may_follow):
                self._in_flight.release_ahead(f"held back: {obstacle}")
            else:
                return replace(done, ahead=len(ahead.claim.events), backlog=True)
        return replace(done.then(self._in_flight.settle()), backlog=True)

    def _shows_backlog(self, batch: ClaimedBatch) -> bool:
        """Return whether more events than these are probably due."""
        claim = batch.claim
        return claim.cut or len(claim.events) >= self._batch_size.size * PART_OF_A_SHARD

    def _obstacle(self, *, may_follow: bool) -> str:
        """Return why the batch claimed ahead must not be sent next, "" when it may be."""
        if not may_follow:
            # The unacknowledged events may include one of the same key.
            return "not all events before were acknowledged"
        # The pause may be longer than the batch's lease.
        return "the broker asks for a pause" if self._batch_size.is_throttled else ""

    def _record(self, batch: ClaimedBatch, deliveries: Sequence[Delivery]) -> bool:
        """Add the write-backs of a sent batch; return whether the next batch may follow."""
        self._batch_size.record(self._sender.pressure(), sent=len(deliveries))
        outcome = decide_outcomes(batch.claim, deliveries, self._retry_of)
        self._in_flight.add(outcome, outage=self._breaker.record(outcome))
        return outcome.all_acknowledged

    def _end_interrupted_send(self) -> None:
        """After a pass was interrupted during a send: wait for its end, and release the batch."""
        if self._in_flight.is_sending:
            # The thread makes one call at a time: after this call, the interrupted one sends no
            # more.
            self._publish_thread.submit(_nothing).result()
            self._in_flight.add_interrupted()

    def until_due(self, *, within: timedelta) -> timedelta | None:
        """Return the time until the next delayed event is due; None: none is `within`.

        Negative for an event that became due since the last claim; None during an outage.
        """
        return None if self._breaker.is_open else self._in_flight.until_due(within=within)

    def close(self) -> None:
        """Release the shards for the other relays, and close the connections to the broker.

        The connections are closed even if the database is unreachable; its error is then raised.
        """
        try:
            with self._passing, self._in_flight.ambiguous_if_abandoned():
                self._end_interrupted_send()
                self._in_flight.release_ahead(_SHARDS_LEAVE)
                self._settle_between_passes()
                self._leases.leave(relay=self._in_flight.name)
        finally:
            self._publish_thread.shutdown(wait=False)
            self._sender.close()


def _nothing() -> None:
    """Do nothing: its end shows that the thread has finished earlier calls."""
