"""The deliberate defects themselves: each makes a defective method from the correct one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast
from unittest.mock import patch
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx._coroutines import run_coroutine
from shieldtx.consumer.attempt_recorder import AttemptRecorder
from shieldtx.consumer.batch_calls import FailedCall
from shieldtx.consumer.breaker import Breaker
from shieldtx.consumer.fetcher import BlockingFetcher, PrefetchingFetcher
from shieldtx.consumer.shared_transaction import Progress, SharedTransaction
from shieldtx.domain.events import Envelope, shard_of
from shieldtx.domain.states import InboxStatus, LocalOutcome, OutboxStatus
from shieldtx.ports.broker import Delivery, DeliveryOutcome, ReceivedRecord
from shieldtx.ports.consumer import FetchedBatch
from shieldtx.ports.inbox import Attempt, AttemptOutcome, Handled, IncomingEvent, Parked, Receipt
from shieldtx.relay.in_flight import InFlight
from shieldtx.relay.outcome import PermanentFailure
from shieldtx.relay.permanent_failure import PermanentFailures
from shieldtx.relay.relay import Relay
from shieldtx.relay.result import RelayResult
from shieldtx.store.shard_count import ShardCount
from tests.verification.simulation.database import Database, InboxRow, OutboxRow, Transaction
from tests.verification.simulation.half_messages import MemoryBarrier, MemoryHalfMessageStore
from tests.verification.simulation.inbox import MemoryInboxStore, MemorySavepoint
from tests.verification.simulation.inbox_receiver import open_rows
from tests.verification.simulation.outbox import MemoryLeaseStore, MemoryOutboxStore
from tests.verification.simulation.processes import ErrorInside, InterruptedInbox
from tests.verification.simulation.retention import MemoryRetentionStore


def taken_for(
    was: set[DeliveryOutcome], becomes: DeliveryOutcome
) -> Callable[..., Callable[..., bool]]:
    def mutated(sound: Callable[..., bool]) -> Callable[..., bool]:
        def record(self: Relay, batch: Any, deliveries: Sequence[Delivery]) -> bool:
            changed = [replace(d, outcome=becomes) if d.outcome in was else d for d in deliveries]
            return sound(self, batch, changed)

        return record

    return mutated


def settles_without_token(_: Any) -> Callable[..., list[OutboxRow]]:
    def carrying(
        self: MemoryOutboxStore, token: UUID, ids: Sequence[UUID], sources: Any
    ) -> list[OutboxRow]:
        rows = [self._database.outbox.get(event_id) for event_id in ids]
        return [row for row in rows if row is not None and row.status in sources]

    return carrying


def claims_after_the_last_seen(_: Any) -> Callable[..., list[OutboxRow]]:
    def choose(self: MemoryOutboxStore, shards: Sequence[int], limit: int) -> list[OutboxRow]:
        db = self._database
        seen = db.__dict__.setdefault("last_seen", 0)
        rows = sorted(db.outbox.values(), key=lambda row: row.seq)
        new = [r for r in rows if r.shard in shards and r.seq > seen][:limit]
        db.__dict__["last_seen"] = max([seen, *(row.seq for row in new)])
        return [row for row in new if row.status is OutboxStatus.INIT]

    return choose


def holds_no_key(sound: Callable[..., None]) -> Callable[..., None]:
    def let_wait(self: MemoryOutboxStore, row: OutboxRow, delay: Any) -> None:
        sound(self, row, delay)
        row.holds_key = False

    return let_wait


def forgets_the_one_before(sound: Callable[..., None]) -> Callable[..., None]:
    def take(self: MemoryOutboxStore, row: OutboxRow, token: UUID, lease_until: float) -> None:
        before = row.unconfirmed
        sound(self, row, token, lease_until)
        row.unconfirmed = before

    return take


def commits_what_nobody_knows(_: Any) -> Callable[..., None]:
    def park(self: MemoryHalfMessageStore, row: OutboxRow) -> None:
        self.end(row, LocalOutcome.COMMIT)

    return park


def only_looks(_: Any) -> Callable[..., LocalOutcome]:
    def outcome_of(self: MemoryBarrier, event_id: UUID) -> LocalOutcome:
        committed = self._database.barrier.get(event_id)
        return LocalOutcome.COMMIT if committed else LocalOutcome.ROLLBACK

    return outcome_of


def shows_what_is_not_committed(sound: Callable[..., None]) -> Callable[..., None]:
    def insert(self: Database, transaction: Transaction, envelope: Any, **due: Any) -> None:
        waiting = len(transaction._writes)
        sound(self, transaction, envelope, **due)
        row = cast("partial[None]", transaction._writes[waiting]).args[0]
        self.outbox[row.envelope.id] = row

    return insert


def writes_by_its_own_number(_: Any) -> Callable[..., int]:
    def of(self: Database, envelope: Envelope, _: int | None = None) -> int:
        return shard_of(envelope.key, envelope.id, 64)

    return of


def writes_by_a_number_of_each_writer(_: Any) -> Callable[..., int]:
    """One of two writers uses the number of the tables, the other half of it."""

    def of(self: Database, envelope: Envelope, _: int | None = None) -> int:
        known = len(self.shards)
        expected = known if envelope.id.int % 2 else max(1, known // 2)
        return shard_of(envelope.key, envelope.id, expected)

    return of


def sends_ahead_whatever_happened(sound: Callable[..., bool]) -> Callable[..., bool]:
    def record(self: Relay, batch: Any, deliveries: Sequence[Delivery]) -> bool:
        sound(self, batch, deliveries)
        return True

    return record


def never_withdraws(_: Any) -> Callable[..., None]:
    def withdraw(self: InFlight) -> None:
        self._has_ambiguous_claim = False

    return withdraw


def drops_its_batch_at_an_error(sound: Callable[..., Any]) -> Callable[..., Any]:
    def fetch(self: PrefetchingFetcher, **options: Any) -> FetchedBatch:
        try:
            return sound(self, **options)
        except ErrorInside:
            self._prefetched = None
            raise

    return fetch


def forgets_what_may_be_sent(_: Any) -> Callable[..., None]:
    def begin_send(self: InFlight, batch: Any) -> None:
        """Leave the batch to the withdrawal, like an unsent batch."""

    return begin_send


def keeps_its_name(_: Any) -> Callable[..., None]:
    def withdraw(self: InFlight) -> None:
        self._store.withdraw(relay=self._name, renamed=self._name)
        self._has_ambiguous_claim = False

    return withdraw


def undoes_what_may_be_delivered(sound: Callable[..., RelayResult]) -> Callable[..., RelayResult]:
    def record(self: PermanentFailures, failure: PermanentFailure) -> RelayResult:
        event = failure.event._replace(unconfirmed=False)
        return sound(self, replace(failure, event=event))

    return record


def commits_offsets_first(sound: Callable[..., FetchedBatch]) -> Callable[..., FetchedBatch]:
    def fetch(self: BlockingFetcher, **limits: Any) -> FetchedBatch:
        batch = sound(self, **limits)
        if batch.records:
            self.commit(batch)
        return batch

    return fetch


def forgets_what_is_settled(sound: Callable[..., Receipt]) -> Callable[..., Receipt]:
    def receive(
        self: MemoryInboxStore,
        group: str,
        arrivals: Sequence[IncomingEvent],
        parked: Sequence[Parked],
    ) -> Receipt:
        inbox = self._database.inbox
        for arrival in arrivals:
            key = (group, arrival.envelope.id, arrival.envelope.source)
            if key in inbox and inbox[key].settled_at is not None:
                del inbox[key]
        return sound(self, group, arrivals, parked)

    return receive


def settles_apart_from_the_effect(_: Any) -> Callable[..., Any]:
    @contextmanager
    def effect(self: InterruptedInbox, attempt: Attempt) -> Iterator[Transaction]:
        database: Database = self._port._database
        self._process.before("effect")
        with database.transaction() as transaction:
            yield transaction
        self._process.after("effect")
        with self._port.effect(attempt):
            self._process.before("commit of the effect")

    return effect


def writes_the_rollback_apart(_: Any) -> Callable[..., bool]:
    def give_up(
        self: InterruptedInbox,
        attempt: Attempt,
        *,
        reason: str,
        in_transaction: Any,
        parked: bool = False,
    ) -> bool:
        self._process.before("give_up")
        kept: bool = self._port.give_up(attempt, reason=reason, in_transaction=None, parked=parked)
        self._process.after("give_up")
        if kept and in_transaction is not None:
            with self._port._database.transaction() as transaction:
                in_transaction(transaction)
        return kept

    return give_up


def takes_a_parked_event_back(_: Any) -> Callable[..., Any]:
    def park(
        self: AttemptRecorder, attempt: Attempt, reason: str, traceback: BaseException | None
    ) -> AttemptOutcome:
        rollback = self._outbox.rollback_of(attempt.envelope, reason=reason)
        kept = self._store.give_up(
            attempt,
            reason=reason,
            in_transaction=lambda session: self._outbox.add_envelope(session, rollback),
            parked=True,
        )
        return AttemptOutcome.DEAD if kept else self._taken_over(attempt, reason)

    return park


def leaves_a_parked_event_to_its_rollback(_: Any) -> Callable[..., None]:
    return lambda self, session, attempt: None


def replays_with_used_up_attempts(sound: Callable[..., None]) -> Callable[..., None]:
    def replay(self: MemoryInboxStore, row: InboxRow) -> None:
        attempts = row.attempts
        sound(self, row)
        row.attempts = attempts

    return replay


def replays_whatever_was_listed(_: Any) -> Callable[..., None]:
    def replay(self: MemoryInboxStore, row: InboxRow) -> None:
        self._database.move_inbox(row, InboxStatus.PROCESSING, self._by)
        row.attempts, row.due_at, row.settled_at = 0, self._database.now, None

    return replay


def works_without_token(_: Any) -> Callable[..., InboxRow | None]:
    def carrying(self: MemoryInboxStore, attempt: Attempt, target: InboxStatus) -> InboxRow | None:
        envelope = attempt.envelope
        row = self._database.inbox.get((attempt.group, envelope.id, envelope.source))
        return row if row is not None and row.status is InboxStatus.PROCESSING else None

    return carrying


def settles_batches_without_token(_: Any) -> Callable[..., list[InboxRow]]:
    def all_carrying(
        self: MemoryInboxStore, attempts: Sequence[Attempt], target: InboxStatus
    ) -> list[InboxRow]:
        inbox = self._database.inbox
        rows = [inbox.get((a.group, a.envelope.id, a.envelope.source)) for a in attempts]
        return [row for row in rows if row is not None and row.status is InboxStatus.PROCESSING]

    return all_carrying


def counts_again_what_died_in_a_batch(_: Any) -> Callable[..., None]:
    def count(self: MemoryInboxStore, row: InboxRow) -> None:
        row.attempts += 1
        row.together = False

    return count


def keeps_the_count(_: Any) -> Callable[..., None]:
    def uncount(self: MemoryInboxStore, row: InboxRow) -> None:
        row.together = False

    return uncount


def goes_on_with_the_key(_: Any) -> Callable[..., Any]:
    return lambda self, attempts, run: attempts


def commits_the_neighbours(_: Any) -> Callable[..., Any]:
    @contextmanager
    def effects(self: InterruptedInbox, attempts: Sequence[Attempt]) -> Iterator[Transaction]:
        self._process.before("effects")
        error: Exception | None = None
        with self._port.effects(attempts) as transaction:
            self._process.after("effects")
            try:
                yield transaction
            except Exception as raised:  # noqa: BLE001  the defect itself
                error = raised
            self._process.before("commit of the effects")
        if error is not None:
            raise error

    return effects


def undoes_nothing(_: Any) -> Callable[..., bool]:
    return lambda self: True


def undoes_everything(sound: Callable[..., bool]) -> Callable[..., bool]:
    def undo(self: MemorySavepoint) -> bool:
        self._begun = 0, self._begun[1]
        return sound(self)

    return undo


def renews_nothing(_: Any) -> Callable[..., None]:
    return lambda self, **how: None


def writes_no_rollbacks(_: Any) -> Callable[..., None]:
    return lambda self, session, refusals: None


def repeats_no_neighbour(sound: Callable[..., bool]) -> Callable[..., bool]:
    def goes_on_after(
        self: SharedTransaction, session: Any, progress: Progress, failed: FailedCall
    ) -> bool:
        progress.done = failed.first
        return sound(self, session, progress, failed)

    return goes_on_after


def waits_for_its_own_event_only(_: Any) -> Callable[..., bool]:
    return lambda self, row: self._waits_for_its_event(row)


def waits_in_a_circle(_: Any) -> Callable[..., bool]:
    def is_blocked(self: MemoryInboxStore, row: InboxRow) -> bool:
        return self._waits_for_its_event(row) or any(
            earlier.seq < row.seq and earlier.envelope.key == row.envelope.key is not None
            for earlier in open_rows(self._database, row.group)
        )

    return is_blocked


def notes_no_compensation(_: Any) -> Callable[..., None]:
    return lambda self, session, attempt: None


def awaits_and_believes(_: Callable[..., None]) -> Callable[..., None]:
    """Wait for a coroutine, and ignore what it returns."""

    def run(function: Callable[..., Any], session: Session, given: Any) -> None:
        returned: list[Any] = []

        async def awaited(*args: Any) -> None:
            returned.append(await function(*args))

        run_coroutine(awaited, session, given)

    return run


def awaits_nothing(_: Callable[..., None]) -> Callable[..., None]:
    """Call a coroutine function, and drop the coroutine."""

    def run(function: Callable[..., Any], session: Session, given: Any) -> None:
        function(session, given).close()

    return run


def divides_a_key(_: Callable[..., object]) -> Callable[..., object]:
    """Give each event a lane of its own, whatever its key."""
    return lambda envelope: (envelope.source, envelope.id)


def believes_every_call(_: Any) -> Callable[..., None]:
    def run(function: Callable[..., object], *args: object) -> None:
        function(*args)

    return run


def purges_whatever_is_old(sound: Callable[..., Any]) -> Callable[..., Any]:
    def purge(self: MemoryRetentionStore, table: str, rows: Any, purgeable: Any, *more: Any) -> Any:
        return sound(self, table, rows, {row.status for row in rows.values()}, *more)

    return purge


def needs_no_row(_: Any) -> Callable[..., bool]:
    return lambda _database, _row: False


def forgets_what_it_cannot_decode(sound: Callable[..., FetchedBatch]) -> Callable[..., Any]:
    def sort(self: BlockingFetcher, records: tuple[ReceivedRecord, ...]) -> FetchedBatch:
        try:
            return sound(self, records)
        except ErrorInside:
            self._to_rewind = ()
            raise

    return sort


def rewinds_twice(_: Any) -> Callable[..., None]:
    def rewind(self: PrefetchingFetcher, *, also_prefetched: bool = False) -> None:
        if not self._to_rewind and not also_prefetched:
            return
        for records in (self._to_rewind, self._read_ahead().records):
            self._thread.submit(self._fetcher.rewind, FetchedBatch(records)).result()
        self._prefetched, self._to_rewind = None, ()

    return rewind


def knows_every_type(sound: Callable[..., RelayResult]) -> Callable[..., RelayResult]:
    def record(self: PermanentFailures, failure: PermanentFailure) -> RelayResult:
        with patch.object(self, "_knows", lambda _: True):
            return sound(self, failure)

    return record


def takes_only_what_fits(_: Any) -> Callable[..., tuple[list[OutboxRow], bool]]:
    def bounded(self: MemoryOutboxStore, rows: Sequence[OutboxRow]) -> tuple[list[OutboxRow], bool]:
        fit = [row for row in rows if len(row.envelope.payload) < self._batch_bytes]
        return fit, len(fit) < len(rows)

    return bounded


def takes_every_source(_: Any) -> Callable[..., bool]:
    return lambda self, row: True


def fails_every_source(sound: Callable[..., None]) -> Callable[..., None]:
    """Neither the claim checks the source, nor the failure whether the type is declared."""

    def init(self: Relay, *, store: Any, knows: Any, **parts: Any) -> None:
        store._port._source = None
        sound(self, store=store, knows=lambda _: True, **parts)

    return init


def releases_no_rows(sound: Callable[..., None]) -> Callable[..., None]:
    """Leave the rows that a dead relay has claimed to the end of their leases."""

    def release_dead(self: MemoryLeaseStore, relay: str) -> None:
        leases = [(row, row.lease_until) for row in self._database.outbox.values()]
        sound(self, relay)
        for row, lease_until in leases:
            row.lease_until = lease_until

    return release_dead


def counts_what_it_cannot_handle(_: Any) -> Callable[..., list[Envelope]]:
    def due(self: MemoryInboxStore, group: str, *, handled: Handled, limit: int) -> list[Envelope]:
        rows = [row for row in open_rows(self._database, group) if self._is_free(row)]
        return [row.envelope for row in rows if not self._is_blocked(row)][:limit]

    return due


def believes_its_setting(sound: Callable[..., int]) -> Callable[..., int]:
    def of(self: ShardCount, connection: Any) -> int:
        return self._setting or sound(self, connection)

    return of


def attempts_whatever_is_paused(_: Any) -> Callable[..., bool]:
    return lambda self, handler: False


def counts_failures_of_probes(sound: Callable[..., bool]) -> Callable[..., bool]:
    def takes_back(self: Breaker, *args: Any, **options: Any) -> bool:
        sound(self, *args, **options)
        return False

    return takes_back


def ends_the_pause_anyway(_: Any) -> Callable[..., None]:
    return lambda self, claim, *, reason: self.close(claim)


def keeps_the_pause(_: Any) -> Callable[..., None]:
    return lambda self, claim: self.keep_paused(claim, reason=None)


def counts_probes_that_die(sound: Callable[..., Any]) -> Callable[..., Any]:
    """Start a probe like any other attempt: it stays counted when its process dies."""

    def start_attempt(self: MemoryInboxStore, group: str, envelope: Envelope, **how: Any) -> Any:
        attempt = sound(self, group, envelope, **how)
        if attempt is not None and how.get("is_probe"):
            self._database.inbox[group, envelope.id, envelope.source].together = False
        return attempt

    return start_attempt
