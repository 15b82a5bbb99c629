"""The relay: claims due events, publishes them, settles them; one pass is `run_once`."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeAlias
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx.errors import LocalRollbackFailed, ShieldTxError
from shieldtx.events import Envelope
from shieldtx.ports import (
    Claim,
    Claimed,
    Delivery,
    Holding,
    LeaseStore,
    OutboxStore,
    Outcome,
    Publisher,
    Record,
    Retry,
    Settlement,
)
from shieldtx.retry import RetryPolicy

log = logging.getLogger(__name__)

LocalRollback: TypeAlias = Callable[[Session, Envelope], None]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayPass:
    """What one pass did, in events."""

    claimed: int = 0
    published: int = 0
    retried: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    """Write-backs that came too late: another relay had taken the rows over."""
    outage: str = ""

    def plus(self, other: RelayPass) -> RelayPass:
        """Add two parts of a pass up."""
        return RelayPass(
            claimed=self.claimed + other.claimed,
            published=self.published + other.published,
            retried=self.retried + other.retried,
            failed=self.failed + other.failed,
            released=self.released + other.released,
            lost=self.lost + other.lost,
            outage=self.outage or other.outage,
        )

    @property
    def more(self) -> bool:
        """Whether there was work, so that the next pass should follow at once."""
        return self.claimed > 0 and not self.outage


class Relay:
    """Moves events from the outbox to the broker, in order per key.

    No transaction is open while it publishes, and no batch is claimed while an earlier one is not
    settled: so nothing of a key can overtake an event of it whose end is not known.
    """

    def __init__(
        self,
        *,
        store: OutboxStore,
        leases: LeaseStore,
        publisher: Publisher,
        encode: Callable[[Envelope], Record],
        settings: RelaySettings,
        retry_of: Callable[[str], RetryPolicy],
        local_rollbacks: Mapping[str, LocalRollback],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._leases = leases
        self._publisher = publisher
        self._encode = encode
        self._settings = settings
        self._retry_of = retry_of
        self._local_rollbacks = local_rollbacks
        self._clock = clock
        self._name = settings.name
        self._renamed = 0
        self._holding = Holding(shards=frozenset(), relays=0, surplus=frozenset())
        # What is to be written down of the last claim; a step that fails is tried again by the next
        # pass.
        self._write_backs: deque[Callable[[], RelayPass]] = deque()
        self._failures_in_a_row = 0
        self._paused_until = 0.0
        # Held during a pass: shards are given back only between passes, when nothing is in flight.
        self._passing = threading.Lock()

    @property
    def shards(self) -> frozenset[int]:
        """The shards held at the last renewal."""
        return self._holding.shards

    def renew(self) -> Holding:
        """Extend the leases and share the shards out anew; to be called a few times per lease."""
        name, lease = self._name, self._settings.lease
        before = self._holding
        self._holding = self._leases.renew(relay=name, lease=lease)
        if name != self._name:
            # A pass has renamed it meanwhile.
            self._leases.leave(relay=name)
        if self._holding.surplus:
            with self._passing:
                # A claim that could not be settled still hangs on its shards.
                if not self._write_backs:
                    self._leases.give_back(relay=name, shards=self._holding.surplus)
        lost = before.shards - before.surplus - self._holding.shards
        if lost:
            log.warning("relay %s lost its lease on %d shards", name, len(lost))
        return self._holding

    def run_once(self) -> RelayPass:
        """Make one pass: claim, publish, settle.

        Errors of the database are raised; what had been sent by then is settled by the next pass
        before it claims anything.
        """
        with self._passing:
            if self._write_backs and (done := self._write_down()).claimed:
                return done
            if self._clock() < self._paused_until:
                return RelayPass(outage="paused")
            started = self._clock()
            # After an outage a single event finds out whether the broker is back.
            limit = 1 if self._failures_in_a_row else self._settings.batch_size
            try:
                claim = self._store.claim(relay=self._name, limit=limit)
            except Exception:
                # Its answer may be all that was lost: the later rows of its keys would overtake it.
                self._write_backs.append(self._withdraw)
                raise
            if not claim.events:
                return RelayPass()
            self._plan_settlement(claim, self._publish(claim, started))
            return self._write_down()

    def close(self) -> None:
        """Free the shards for the other relays and let go of the broker."""
        with self._passing:
            self._write_down()
            self._leases.leave(relay=self._name)
        self._publisher.close()

    def _publish(self, claim: Claim, started: float) -> Sequence[Delivery]:
        """Send a claim's events while the lease lasts; without a lease nothing is sent."""
        # A tenth of the lease is kept for writing the end down.
        left = claim.lease_left - self._settings.lease / 10
        left_seconds = left.total_seconds() - (self._clock() - started)
        timeout = min(left_seconds, self._settings.send_timeout.total_seconds())
        if timeout <= 0:
            held = Delivery(outcome=Outcome.HELD, reason="the lease was about to run out")
            return [held] * len(claim.events)
        records: list[Record] = []
        unsendable: dict[int, Delivery] = {}
        for place, claimed in enumerate(claim.events):
            try:
                records.append(self._encode(claimed.envelope))
            except ShieldTxError as error:
                unsendable[place] = Delivery(outcome=Outcome.REJECTED, reason=str(error))
        sent = iter(self._publisher.publish(records, timeout=timeout))
        return [unsendable.get(place) or next(sent) for place in range(len(claim.events))]

    def _plan_settlement(self, claim: Claim, deliveries: Sequence[Delivery]) -> None:
        """Decide how each event of a claim ends; `_write_down` carries it out step by step."""
        ended: dict[Outcome, list[tuple[Claimed, str]]] = defaultdict(list)
        for claimed, delivery in zip(claim.events, deliveries, strict=True):
            ended[delivery.outcome].append((claimed, delivery.reason))
        retries: list[Retry] = []
        hopeless = ended[Outcome.REJECTED]
        for claimed, reason in ended[Outcome.REFUSED]:
            delay = self._retry_of(claimed.envelope.type).delay_after(claimed.attempts)
            if delay is None:
                hopeless.append((claimed, f"{reason} (all {claimed.attempts} attempts used up)"))
            else:
                retries.append(Retry(event_id=claimed.envelope.id, delay=delay, reason=reason))
        if retries:
            log.warning(
                "%d events refused for now, tried again later: %s", len(retries), retries[0].reason
            )
        away = [*ended[Outcome.UNCONFIRMED], *ended[Outcome.UNSENT]]
        back = [*away, *ended[Outcome.HELD]]
        settlement = Settlement(
            processed=_ids(ended[Outcome.ACKNOWLEDGED]),
            unsent=_ids([*ended[Outcome.UNSENT], *ended[Outcome.HELD]]),
            unconfirmed=_ids(ended[Outcome.UNCONFIRMED]),
            retries=retries,
            reason=back[0][1] if back else "",
        )
        heard = bool(ended[Outcome.ACKNOWLEDGED] or ended[Outcome.REFUSED])
        outage = self._note_outage(away, heard=heard)
        self._write_backs.append(partial(self._settle, claim.token, settlement, outage))
        self._write_backs.extend(
            partial(self._fail, claim.token, claimed, reason) for claimed, reason in hopeless
        )

    def _write_down(self) -> RelayPass:
        """Carry out what the last claim still owes the table."""
        done = RelayPass()
        while self._write_backs:
            done = done.plus(self._write_backs[0]())
            self._write_backs.popleft()
        if done.lost:
            log.warning(
                "%d events were taken over by another relay before they were settled", done.lost
            )
        return done

    def _withdraw(self) -> RelayPass:
        """Undo a claim whose answer was lost; if it is still on its way, it shall find nothing."""
        renamed = f"{self._settings.name}+{self._renamed + 1}"
        self._store.withdraw(relay=self._name, renamed=renamed)
        self._name = renamed
        self._renamed += 1
        return RelayPass()

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

    def _fail(self, token: UUID, claimed: Claimed, reason: str) -> RelayPass:
        """Fail an event for good; when its local rollback goes wrong, let it wait and try again."""
        envelope = claimed.envelope
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
            log.exception("the local rollback of %s %s failed", envelope.type, envelope.id)
            retry = Retry(
                event_id=envelope.id,
                delay=self._retry_of(envelope.type).longest,
                reason=f"{reason}; {error}",
            )
            return self._settle(token, Settlement(retries=[retry]), "")
        log.error("event %s %s failed: %s", envelope.type, envelope.id, reason)
        return RelayPass(claimed=1, failed=int(kept), lost=int(not kept))

    def _note_outage(self, unsent: Sequence[tuple[Claimed, str]], *, heard: bool) -> str:
        """Pause after an outage, longer each time; go on at once when the broker is heard again."""
        if not unsent:
            if heard:
                self._failures_in_a_row = 0
            return ""
        self._failures_in_a_row += 1
        policy = self._settings.outage_pause
        pause = policy.delay_after(min(self._failures_in_a_row, policy.max_attempts - 1))
        self._paused_until = self._clock() + (pause or policy.longest).total_seconds()
        reason = unsent[0][1]
        log.warning("broker unavailable, %d events given back: %s", len(unsent), reason)
        return reason


def _ids(events: Sequence[tuple[Claimed, str]]) -> list[UUID]:
    return [claimed.envelope.id for claimed, _ in events]
