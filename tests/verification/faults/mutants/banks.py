"""Mutants of relays, consumers and clients.

They are the defects of ShieldTXC, of which shieldtx is the successor, and typical defects of outbox
libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

from sqlalchemy import BigInteger, Engine, and_, bindparam, create_engine, false, func, or_, select
from sqlalchemy.orm import Session

from shieldtx.brokers import decoding, signing
from shieldtx.brokers.kafka.broker import KafkaSubscriber
from shieldtx.consumer.attempt_recorder import AttemptRecorder
from shieldtx.consumer.batch_executor import BatchExecutor
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.consumer.fetcher import BlockingFetcher
from shieldtx.domain.states import TxKind
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from shieldtx.ports.consumer import FetchedBatch
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from shieldtx.ports.relay import Claim
from shieldtx.relay.in_flight import InFlight
from shieldtx.relay.relay import Relay
from shieldtx.relay.sender import Sender
from shieldtx.scheduling.worker import Worker
from shieldtx.store import connections
from shieldtx.store.blocked import BlockedRows
from shieldtx.store.fence import Fence
from shieldtx.store.guarded_session import guarded_session, lock_rows, settle
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.statements import claim as claim_sql
from shieldtx.store.statements import inbox as inbox_sql
from shieldtx.store.statements import inbox_order
from shieldtx.store.statements import outbox as outbox_sql
from shieldtx.store.statements import receive as receive_sql
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _engine_of(store: Any) -> Engine:
    """Return the engine of a store of inboxes, also in a failpoint."""
    return cast("Engine", store._engine)


def _acknowledged_whatever_happened(breaker: Breaker) -> None:
    record = Relay._record

    def mutant(self: Relay, batch: Any, deliveries: Sequence[Delivery]) -> bool:
        return record(
            self, batch, [Delivery(outcome=DeliveryOutcome.ACKNOWLEDGED)] * len(deliveries)
        )

    Relay._record = mutant


def _an_outage_burns_attempts(breaker: Breaker) -> None:
    record = Relay._record
    outage = {DeliveryOutcome.UNSENT, DeliveryOutcome.UNCONFIRMED, DeliveryOutcome.DEFERRED}

    def mutant(self: Relay, batch: Any, deliveries: Sequence[Delivery]) -> bool:
        burnt = [
            replace(d, outcome=DeliveryOutcome.REFUSED) if d.outcome in outage else d
            for d in deliveries
        ]
        return record(self, batch, burnt)

    Relay._record = mutant


def _a_poison_row_stops_the_sweep(breaker: Breaker) -> None:
    send = Sender.send

    def mutant(self: Sender, batch: Any) -> Sequence[Delivery]:
        deliveries = send(self, batch)
        for delivery in deliveries:
            if delivery.outcome is DeliveryOutcome.REJECTED:
                raise RuntimeError(delivery.reason)
        return deliveries

    Sender.send = mutant


def _leases_never_run_out(breaker: Breaker) -> None:
    claim_sql._is_claimable = lambda o, d: o.c.status == "INIT"


def _no_shard_leases(breaker: Breaker) -> None:
    def mutant(t: Any, d: Any) -> Any:
        s = t.shard
        return select(s.c.shard, s.c.epoch, d.later(60).label("lease_until")).cte("leased")

    claim_sql.leased_shards = mutant


def _polled_by_last_seen(breaker: Breaker) -> None:
    claimable, claim = claim_sql._is_claimable, SqlRelayStore.claim
    seen = [0]

    def mutant(self: SqlRelayStore, *, relay: str, limit: int) -> Claim:
        claimed = claim(self, relay=relay, limit=limit)
        o = self._tables.outbox
        ids = [event.envelope.id for event in claimed.events]
        with self._engine.connect() as connection:
            newest = connection.scalar(select(func.max(o.c.seq)).where(o.c.event_id.in_(ids)))
        seen[0] = max(seen[0], newest or 0)
        return claimed

    # The statement is built once, and evaluated at each execution.
    newest = bindparam("newest_seen", callable_=lambda: seen[0], type_=BigInteger())
    claim_sql._is_claimable = lambda o, d: (o.c.seq > newest) & claimable(o, d)
    SqlRelayStore.claim = mutant


def _a_claim_without_order(breaker: Breaker) -> None:
    claim = SqlRelayStore.claim

    def mutant(self: SqlRelayStore, *, relay: str, limit: int) -> Claim:
        claimed = claim(self, relay=relay, limit=limit)
        return replace(claimed, events=claimed.events[::-1])

    SqlRelayStore.claim = mutant


def _an_outbox_without_fencing(breaker: Breaker) -> None:
    def mutant(t: Any, d: Any, token: Any, ids: Sequence[Any], target: Any) -> Any:
        return d.is_in(t.outbox.c.event_id, ids, t.outbox.c.event_id.type)

    outbox_sql._may_be_settled = mutant


def _an_inbox_without_fencing(breaker: Breaker) -> None:
    def mutant(t: Any, rows: Any, group: Any, token: Any, target: Any) -> Any:
        i = t.inbox
        # The parameter has to be present, and decides nothing.
        anyhow = or_(i.c.lease_token == token, i.c.event_id.is_not(None))
        return and_(rows, i.c.consumer_group == group, anyhow)

    inbox_sql._may_be_settled = mutant


def _published_before_the_commit(breaker: Breaker) -> None:
    insert = SqlOutboxWriter.insert

    def mutant(self: SqlOutboxWriter, connection: Any, postings: Sequence[Any]) -> None:
        engine = create_engine(connection.engine.url)
        with engine.begin() as own:
            insert(self, own, postings)
        engine.dispose()

    SqlOutboxWriter.insert = mutant


def _offsets_before_the_inbox(breaker: Breaker) -> None:
    fetch = BlockingFetcher.fetch

    def mutant(self: BlockingFetcher, **limits: Any) -> FetchedBatch:
        batch = fetch(self, **limits)
        self.commit(batch)
        return batch

    BlockingFetcher.fetch = mutant


def _duplicates_reach_the_handler(breaker: Breaker) -> None:
    receive, process = SqlInboxStore.receive, EventProcessor.process

    def all_fresh(self: SqlInboxStore, group: str, arrivals: Any, parked: Any) -> Any:
        receipt = receive(self, group, arrivals, parked)
        return replace(receipt, fresh=[arrival.envelope for arrival in arrivals])

    def mutant(self: EventProcessor, envelope: Any) -> AttemptOutcome:
        outcome = process(self, envelope)
        if outcome is AttemptOutcome.BLOCKED:
            handler = self._group.handler_of(envelope.type, envelope.kind)
            attempt = Attempt(envelope=envelope, group=self._group.name, number=1, token=uuid4())
            with guarded_session(_engine_of(self.store), "handler") as (session, _):
                self.caller.call(session, handler, attempt)
            return AttemptOutcome.APPLIED
        return outcome

    SqlInboxStore.receive, EventProcessor.process = all_fresh, mutant


def _effect_and_status_apart(breaker: Breaker) -> None:
    @contextmanager
    def apart(self: SqlInboxStore, lock: Any, processed: Any, parameters: Any) -> Iterator[Session]:
        with guarded_session(self._engine, "handler") as (session, _):
            yield session
        breaker.reach("handler", "after")
        with guarded_session(self._engine, "handler") as (session, connection):
            locked = lock_rows(connection, lock, parameters)
            settle(session, locked, processed, parameters)

    def effect(self: SqlInboxStore, attempt: Any) -> Any:
        e = attempt.envelope
        parameters = inbox_sql.attempt_parameters(attempt.group, e.id, e.source, attempt.token)
        return apart(self, self._lock_row, self._processed, parameters)

    def effects(self: SqlInboxStore, attempts: Any) -> Any:
        first = attempts[0]
        ids = [attempt.envelope.id for attempt in attempts]
        parameters = inbox_sql.batch_parameters(first.group, ids, first.token)
        return apart(self, self._lock_batch, self._all_processed, parameters)

    SqlInboxStore.effect, SqlInboxStore.effects = effect, effects


def _an_attempt_that_counts_when_it_ends(breaker: Breaker) -> None:
    start, postpone = SqlInboxStore.start_attempt, SqlInboxStore.postpone
    receive = SqlInboxStore.receive

    def change(store: SqlInboxStore, event_id: Any, by: int) -> None:
        i = store._tables.inbox
        changed = {"attempts": i.c.attempts + by, "together": false()}
        with store._engine.begin() as connection:
            connection.execute(i.update().where(i.c.event_id == event_id).values(changed))

    def begin_all(self: SqlInboxStore, *what: Any) -> Any:
        receipt = receive(self, *what)
        for attempt in receipt.started:
            change(self, attempt.envelope.id, -1)
        return receipt

    def begin(self: SqlInboxStore, group: str, envelope: Any, **how: Any) -> Any:
        attempt = start(self, group, envelope, **how)
        if attempt is not None:
            change(self, envelope.id, -1)
        return attempt

    def end(self: SqlInboxStore, attempt: Any, **how: Any) -> bool:
        change(self, attempt.envelope.id, 1)
        return postpone(self, attempt, **how)

    SqlInboxStore.start_attempt, SqlInboxStore.postpone = begin, end
    SqlInboxStore.receive = begin_all


def _a_retry_that_holds_nothing_back(breaker: Breaker) -> None:
    inbox_order.is_blocked = lambda t, i: false()
    receive_sql.open_keys = lambda t, d: select(t.inbox.c.topic, t.inbox.c.key).where(false())
    BatchExecutor._free = lambda self, attempts, run: attempts


def _the_rollback_in_a_second_transaction(breaker: Breaker) -> None:
    give_up = SqlInboxStore.give_up

    def mutant(self: SqlInboxStore, attempt: Any, *, reason: str, in_transaction: Any) -> bool:
        kept = give_up(self, attempt, reason=reason, in_transaction=None)
        if kept and in_transaction is not None:
            with Session(self._engine) as session, session.begin():
                in_transaction(session)
        return kept

    SqlInboxStore.give_up = mutant


def _rolled_back_although_it_succeeds(breaker: Breaker) -> None:
    fail = AttemptRecorder.fail

    def mutant(
        self: AttemptRecorder, attempt: Any, handler: Any, error: Exception
    ) -> AttemptOutcome:
        if attempt.envelope.kind is TxKind.COMMIT:
            with Session(_engine_of(self._store)) as session, session.begin():
                rollback = self._outbox.rollback_of(attempt.envelope, reason=str(error))
                self._outbox.add_envelope(session, rollback)
        return fail(self, attempt, handler, error)

    AttemptRecorder.fail = mutant


def _an_interrupted_pass_is_forgotten(breaker: Breaker) -> None:
    def swallowed(self: Worker, job: Any) -> None:
        with suppress(BaseException):
            passes(self, job)

    passes = Worker._run_passes
    Worker._run_passes = swallowed
    Worker.stop = lambda self: None
    InFlight.ambiguous_if_abandoned = lambda self: nullcontext()
    InFlight.add_interrupted = lambda self: setattr(self, "_sending", None)


def _whoever_asks_is_believed(breaker: Breaker) -> None:
    def mutant(record: Any, prefix: str, keys: Sequence[Any] = (), **reader: Any) -> Any:
        return decoding.decode(record, prefix, **reader)

    signing.decode = mutant


def _former_primaries_are_kept(breaker: Breaker) -> None:
    connections._invalidate_pool = lambda context: None


def _aborted_records_are_read(breaker: Breaker) -> None:
    begin = KafkaSubscriber.__init__

    def mutant(self: KafkaSubscriber, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self._options["isolation_level"] = "read_uncommitted"

    KafkaSubscriber.__init__ = mutant


def _blocked_for_good(breaker: Breaker) -> None:
    BlockedRows._bring_back = lambda self, connection, free: 0


def _a_fence_that_never_retreats(breaker: Breaker) -> None:
    Fence.retreat = lambda self, seq: None


IN_BANKS = named(
    "BANK_MUTANT",
    ("M1", "marked PROCESSED although the send failed", _acknowledged_whatever_happened),
    ("M2", "rows in PROCESSING stay there after a crash", _leases_never_run_out),
    ("M3", "a rejected row stops all later rows", _a_poison_row_stops_the_sweep),
    ("M4", "LIMIT without ORDER BY", _a_claim_without_order),
    ("M5", "the handler is called for duplicates", _duplicates_reach_the_handler),
    ("M6", "effect and status in two transactions", _effect_and_status_apart),
    ("M7", "giving up and rollback in two transactions", _the_rollback_in_a_second_transaction),
    (
        "M8",
        "a success on a retry is rolled back as well",
        _rolled_back_although_it_succeeds,
    ),
    ("M9", "polling by id > last seen", _polled_by_last_seen),
    ("M10", "relays without shard leases", _no_shard_leases),
    ("M11", "an outbox settled without its token", _an_outbox_without_fencing),
    ("M12", "an inbox settled without its token", _an_inbox_without_fencing),
    ("M13", "an outage uses up attempts", _an_outage_burns_attempts),
    ("M14", "offsets committed before the inbox", _offsets_before_the_inbox),
    ("M15", "attempts counted when they end", _an_attempt_that_counts_when_it_ends),
    ("M16", "a retry does not block its key", _a_retry_that_holds_nothing_back),
    ("M17", "the event written outside of the business transaction", _published_before_the_commit),
    ("M18", "rollbacks accepted without a signature", _whoever_asks_is_believed),
    ("M26", "an interrupted pass forgets its claim", _an_interrupted_pass_is_forgotten),
    ("M34", "connections to a former primary are kept", _former_primaries_are_kept),
    ("M37", "records of aborted transactions are read", _aborted_records_are_read),
    ("M45", "blocked rows stay blocked when their key is free", _blocked_for_good),
    ("M46", "claims pass over rows that were unblocked", _a_fence_that_never_retreats),
)
