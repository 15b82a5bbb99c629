"""The relay: claims due events, publishes them, settles them; one pass is `run_once`."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeAlias
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx._executors import SingleThread
from shieldtx.domain.events import Envelope
from shieldtx.domain.reasons import WITH_TRACEBACK, loggable
from shieldtx.domain.retry import RetryPolicy
from shieldtx.errors import LocalRollbackFailed
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.broker import Delivery, Publisher, Record
from shieldtx.ports.relay import (
    ClaimedEvent,
    LeaseStore,
    RelayStore,
    Retry,
    Settlement,
    ShardLeases,
)
from shieldtx.relay.outcome import ending_of
from shieldtx.relay.result import RelayPass
from shieldtx.relay.sender import Batch, Outage, Sender
from shieldtx.relay.throttle import Pace

log = logging.getLogger(__name__)

LocalRollback: TypeAlias = Callable[[Session, Envelope], None]


PART_OF_A_SHARD = 1 / 4
"""The part of a batch that one shard may fill; from there on a claim tells of a backlog."""

CLAIMS_AT_A_TIME = 2
"""Of a backlog, one batch is sent while the next is claimed."""

OUTAGE_PAUSE = RetryPolicy(first=timedelta(seconds=0.2), longest=timedelta(seconds=10))
"""How long a relay leaves a broker alone that does not answer; the attempts are without end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySettings:
    """How a relay works; leases run by the database's clock, deadlines by the process's."""

    name: str
    """Unique among all relays and all their restarts."""
    batch_size: int = 1000
    lease: timedelta = timedelta(seconds=30)
    send_timeout: timedelta = timedelta(seconds=10)
    """How long one batch may take to be acknowledged; below the lease."""
    outage_pause: RetryPolicy = OUTAGE_PAUSE


class Relay:
    """Moves events from the outbox to the broker, in order per key.

    No transaction is open while it publishes. Of a backlog, the next batch is claimed while one is
    being published, but it is sent only when every event of the one before is acknowledged, and
    given back otherwise: so nothing of a key can overtake an event of it whose end is not known.
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
        beside: Executor | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Begin nothing yet.

        An event that this release does not know (`knows`) never fails for good here: only a release
        that declares its type can tell whether it has a local rollback.

        `beside` runs the publishing of a batch while the database is at work on its neighbours; a
        thread of the relay's own by default.
        """
        self._store = store
        self._leases = leases
        self._sender = Sender(
            publisher,
            encode,
            lease=settings.lease,
            timeout=settings.send_timeout,
            clock=clock,
            hooks=hooks,
        )
        self._outage = Outage(settings.outage_pause, clock=clock)
        self._pace = Pace(settings.batch_size, clock=clock)
        self._settings = settings
        self._retry_of = retry_of
        self._local_rollbacks = local_rollbacks
        self._knows = knows
        self._clock = clock
        self._beside = beside or SingleThread("shieldtx-publish")
        self._name = settings.name
        self._renamed = 0
        self._holding = ShardLeases(shards=frozenset(), relays=0, surplus=frozenset())
        # What is to be written down of the claims that were sent; a step that fails is tried again
        # by the next pass.
        self._owed: deque[Callable[[], RelayPass]] = deque()
        self._in_doubt = False
        """The answer to a claim was lost."""
        self._former_names: deque[str] = deque()
        """Names under which it may hold shards, for a claim that is still on its way to find."""
        self._ahead: Batch | None = None
        """Claimed while the one before was published, all of which has been acknowledged."""
        self._unreported = RelayPass()
        self._looked_at = clock()
        # Held during a pass: shards are given back only between passes, when nothing is in flight.
        self._passing = threading.Lock()

    @property
    def shards(self) -> frozenset[int]:
        """The shards held at the last renewal."""
        return self._holding.shards

    def renew(self) -> ShardLeases:
        """Extend the leases and share the shards out anew; to be called a few times per lease."""
        name, lease = self._name, self._settings.lease
        before = self._holding
        self._holding = self._leases.renew(relay=name, lease=lease)
        if self._holding.surplus:
            with self._passing:
                if self._ahead is not None:
                    self._let_go_ahead()
                # A claim that could not be settled still hangs on its shards.
                if not self._owed and not self._in_doubt and name == self._name:
                    self._leases.give_back(relay=name, shards=self._holding.surplus)
        if name != self._name:
            # A pass has renamed it meanwhile, because of a claim whose answer was lost: that may
            # still find what was taken just now under the old name.
            self._former_names.append(name)
        lost = before.shards - before.surplus - self._holding.shards
        if lost:
            log.warning("relay %s lost its lease on %d shards", name, len(lost))
        return self._holding

    def run_once(self) -> RelayPass:
        """Make one pass: claim, publish, settle; of a backlog, the end is left to the next pass.

        Errors of the database are raised; what had been sent by then is settled by the next pass
        before it claims anything.
        """
        with self._passing, self._claims_kept():
            batch, self._ahead = self._ahead, None
            done, self._unreported = self._unreported, RelayPass()
            if batch is None:
                unwritten = self._owed or self._in_doubt or self._former_names
                if unwritten and (late := self._write_down()).claimed:
                    return done.plus(late).plus(RelayPass(backlog=True))
                if self._outage.is_pausing:
                    return done.plus(RelayPass(outage="paused"))
                if pause := self._pace.pause:
                    return done.plus(RelayPass(slowed=pause, backlog=True))
                # After an outage a single event finds out whether the broker is back.
                batch = self._claim(1 if self._outage.is_on else self._pace.size)
            if not batch.claim.events:
                return done
            return done.plus(self._pass(batch))

    @contextmanager
    def _claims_kept(self) -> Iterator[None]:
        """Withdraw, before anything else is claimed, what an interrupted pass may have claimed.

        An interruption is what no `except Exception` stops: SystemExit from a hook or a local
        rollback, KeyboardInterrupt, a panic of an extension.
        """
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._in_doubt = True
            raise

    def until_due(self, *, within: timedelta) -> timedelta | None:
        """Return how long until the next event is due that waits for its time; None: none is soon.

        Below zero for one that became due since the last pass looked; None during an outage.
        """
        if self._outage.is_pausing:
            return None
        since = timedelta(seconds=self._clock() - self._looked_at)
        return self._store.until_due(relay=self._name, since=since, within=within)

    def close(self) -> None:
        """Free the shards for the other relays and let go of the broker.

        Of the broker also where the database is unreachable, whose error is then raised.
        """
        try:
            with self._passing:
                self._let_go_ahead()
                self._leases.leave(relay=self._name)
        finally:
            self._beside.shutdown(wait=False)
            self._sender.close()

    def _pass(self, batch: Batch) -> RelayPass:
        """Publish a batch; beside that, settle the one before and claim the next of a backlog."""
        claim = batch.claim
        backlog = claim.cut or len(claim.events) >= self._pace.size * PART_OF_A_SHARD
        if not self._owed and (not backlog or self._pace.is_throttled):
            # A single event was claimed to find out whether the broker is back; or others of its
            # key have waited behind one that is retried.
            others = self._outage.is_on or any(c.attempts > 1 for c in batch.claim.events)
            self._end(batch, self._answers(batch, partial(self._sender.send, batch)))
            done = self._write_down()
            return done.plus(RelayPass(backlog=backlog or others or done.released > 0))
        sending = self._beside.submit(self._sender.send, batch)
        done, ahead = RelayPass(), None
        failure: BaseException | None = None
        try:
            done = self._write_down()
            if backlog and not self._holding.surplus and not self._pace.is_throttled:
                ahead = self._claim(self._pace.size)
        except BaseException as error:  # noqa: BLE001  raised again when the batch's end is known
            failure = error
        clean = self._end(batch, self._answers(batch, sending.result))
        if failure is not None:
            raise failure
        if ahead is not None and not clean:
            # Its keys may be those of the events that were not acknowledged.
            self._hold_back(ahead, "not all events before were acknowledged")
        elif ahead is not None and self._pace.is_throttled:
            # A pause may be longer than its lease.
            clean = False
            self._hold_back(ahead, "the broker asks for a pause")
        if ahead is None or not clean or not ahead.claim.events:
            return done.plus(self._write_down()).plus(RelayPass(backlog=True))
        self._ahead = ahead
        return done.plus(RelayPass(ahead=len(ahead.claim.events), backlog=True))

    def _answers(self, batch: Batch, send: Callable[[], Sequence[Delivery]]) -> Sequence[Delivery]:
        """Return how a batch was delivered; when that is interrupted, the broker may have it."""
        try:
            return send()
        except BaseException as interruption:
            ids = [claimed.envelope.id for claimed in batch.claim.events]
            reason = f"interrupted while it was sent: {interruption!r}"
            back = Settlement(unconfirmed=ids, reason=reason)
            self._owed.append(partial(self._settle, batch.claim.token, back, ""))
            raise

    def _claim(self, limit: int) -> Batch:
        since = self._looked_at = self._clock()
        try:
            return Batch(self._store.claim(relay=self._name, limit=limit), since)
        except Exception:
            # Its answer may be all that was lost: the later rows of its keys would overtake it.
            self._in_doubt = True
            raise

    def _end(self, batch: Batch, deliveries: Sequence[Delivery]) -> bool:
        """Note what a sent batch owes the table; return whether all of it was acknowledged."""
        token = batch.claim.token
        self._pace.note(self._sender.pressure(), sent=len(deliveries))
        ending = ending_of(batch.claim, deliveries, self._retry_of)
        outage = self._outage.note(ending)
        self._owed.append(partial(self._settle, token, ending.settlement, outage))
        self._owed.extend(
            partial(self._fail, token, claimed, reason) for claimed, reason in ending.hopeless
        )
        return ending.clean

    def _hold_back(self, batch: Batch, why: str) -> None:
        """Note that a batch is to be given back unsent."""
        ids = [claimed.envelope.id for claimed in batch.claim.events]
        back = Settlement(unsent=ids, reason=f"held back: {why}")
        self._owed.append(partial(self._settle, batch.claim.token, back, ""))

    def _let_go_ahead(self) -> None:
        """Settle what was sent, and give back what was claimed ahead."""
        if self._ahead is not None:
            self._hold_back(self._ahead, "the relay gives its shards away")
            self._ahead = None
        self._unreported = self._unreported.plus(self._write_down())

    def _write_down(self) -> RelayPass:
        """Carry out what the claims still owe the table, in their order."""
        done = RelayPass()
        while self._owed:
            done = done.plus(self._owed[0]())
            self._owed.popleft()
        if self._in_doubt:
            self._withdraw()
        while self._former_names:
            self._store.withdraw(relay=self._former_names[0], renamed=self._name)
            self._former_names.popleft()
        if done.lost:
            log.warning(
                "%d events were taken over by another relay before they were settled", done.lost
            )
        return done

    def _withdraw(self) -> None:
        """Undo a claim whose answer was lost; if it is still on its way, it shall find nothing."""
        renamed = f"{self._settings.name}+{self._renamed + 1}"
        self._store.withdraw(relay=self._name, renamed=renamed)
        self._name = renamed
        self._renamed += 1
        self._in_doubt = False

    def _settle(self, token: UUID, settlement: Settlement, outage: str) -> RelayPass:
        if not len(settlement):
            return RelayPass(outage=outage)
        return RelayPass(
            claimed=len(settlement),
            published=len(settlement.processed),
            released=len(settlement.unsent) + len(settlement.unconfirmed),
            retried=len(settlement.retries),
            lost=len(settlement) - self._store.settle(token, settlement),
            outage=outage,
        )

    def _fail(self, token: UUID, claimed: ClaimedEvent, reason: str) -> RelayPass:
        """Fail an event for good; when its local rollback goes wrong, let it wait and try again."""
        envelope = claimed.envelope
        if not self._knows(envelope):
            return self._leave(token, envelope, reason)
        undo = self._local_rollbacks.get(envelope.type)
        if claimed.unconfirmed:
            # Somebody downstream may have it: undoing it here alone would tear the two apart.
            undo = None
            reason += (
                "; an earlier attempt was never confirmed, so the event may have been delivered: "
                "the local rollback was withheld for a person to decide"
            )
        try:
            kept = self._store.fail(
                token,
                envelope.id,
                reason=reason,
                local_rollback=None if undo is None else lambda session: undo(session, envelope),
            )
        except LocalRollbackFailed as error:
            log.exception(
                "the local rollback of %s %s failed",
                envelope.type,
                envelope.id,
                exc_info=loggable(error),
                extra=WITH_TRACEBACK,
            )
            retry = Retry(
                event_id=envelope.id,
                delay=self._retry_of(envelope.type).longest,
                reason=f"{reason}; {error}",
            )
            return self._settle(token, Settlement(retries=[retry]), "")
        log.error("event %s %s failed: %s", envelope.type, envelope.id, reason)
        return RelayPass(claimed=1, failed=int(kept), lost=int(not kept))

    def _leave(self, token: UUID, envelope: Envelope, reason: str) -> RelayPass:
        """Let an event of an unknown type wait for a release that declares it."""
        why = f"this release does not declare the event type {envelope.type!r}, so it cannot fail"
        log.warning("event %s %s waits: %s: %s", envelope.type, envelope.id, why, reason)
        delay = self._retry_of(envelope.type).longest
        retry = Retry(event_id=envelope.id, delay=delay, reason=f"{reason}; {why}")
        return self._settle(token, Settlement(retries=[retry]), "")
