"""Half messages in memory: their store and barrier, like the SQL ones, and a checker.

The local transactions are those of the upstream bank's database. The outbox is in the same
database, but shares no transaction with them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import LocalOutcome, OutboxStatus
from shieldtx.errors import IllegalTransition, LateTransaction
from shieldtx.half_messages.check_back import CheckBack, Parking
from shieldtx.half_messages.messages import HalfMessages
from shieldtx.ports.half_messages import (
    CheckClaim,
    CheckResult,
    CheckSchedule,
    DueCheck,
    NewHalfMessage,
)
from shieldtx.store.half_messages import _checked_together as checked_together
from shieldtx.store.half_messages import _reason as why_parked
from tests.verification.simulation.banks import TYPE, Transfer
from tests.verification.simulation.database import (
    Blocked,
    Database,
    DatabaseError,
    OutboxRow,
    Transaction,
)
from tests.verification.simulation.processes import Interrupted, Process

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

PLAN = CheckSchedule(
    immunity=timedelta(seconds=1), interval=timedelta(seconds=2), most=2, max_age=timedelta(hours=1)
)
UNREACHABLE = 0.4
"""The share of checks that find the ledger unreachable."""

_BARRIER = "barrier"
_HALF, _UNRESOLVED = OutboxStatus.HALF, OutboxStatus.UNRESOLVED


class MemoryHalfMessageStore:
    """Prepares, checks and ends half messages (the port HalfMessageStore)."""

    def __init__(self, database: Database, *, by: str = "") -> None:
        self._database = database
        self._by = by

    def prepare(self, messages: Sequence[NewHalfMessage]) -> None:
        """Store half messages."""
        db = self._database
        for message in messages:
            envelope = message.envelope
            db.store_half(
                OutboxRow(
                    envelope=envelope.evolve(time=db.clock.datetime()),
                    seq=db.next_in_sequence(),
                    shard=db.shard_of(envelope),
                    due_at=db.now + PLAN.max_age.total_seconds(),
                    waiting=True,
                    is_delayed=message.delay is not None,
                    status=_HALF,
                    checks=0,
                    check_at=db.now + PLAN.immunity.total_seconds(),
                    send_delay=message.delay.total_seconds() if message.delay else 0.0,
                )
            )

    def resolve(self, event_ids: Sequence[UUID], outcome: LocalOutcome) -> dict[UUID, OutboxStatus]:
        """End the HALF ones, in this order."""
        rows = self._database.outbox
        before = {i: rows[i].status for i in event_ids if i in rows}
        for event_id, status in before.items():
            if status is _HALF:
                self.end(rows[event_id], outcome)
        return before

    def types_due(self, event_types: Sequence[str]) -> Collection[str]:
        """Return the types with a message due for a check."""
        now = self._database.now
        due = {
            row.envelope.type
            for row in self._halves()
            if row.check_at <= now < row.due_at and row.checks < PLAN.most
        }
        return [event_type for event_type in event_types if event_type in due]

    def claim_checks(self, event_type: str, *, limit: int) -> CheckClaim:
        """Claim messages that are due for a check, and count the check."""
        now, rows = self._database.now, self._database.outbox
        due = [
            row
            for row in self._halves()
            if row.envelope.type == event_type
            and row.check_at <= now < row.due_at
            and row.checks < PLAN.most
        ]
        due = sorted(due, key=lambda row: (row.check_at, row.envelope.id))[:limit]
        ids = checked_together([(row.envelope.id, row.token is not None) for row in due])
        token = uuid4()
        for row in map(rows.__getitem__, ids):
            row.token, row.checks = token, row.checks + 1
            row.check_at = now + PLAN.interval.total_seconds()
        return CheckClaim(
            token=token,
            checks=[DueCheck(rows[i].envelope, rows[i].checks) for i in sorted(ids)],
            more=len(due) == limit or len(ids) < len(due),
        )

    def answer(self, token: UUID, answers: Sequence[CheckResult]) -> Collection[UUID]:
        """End messages, or store why they could not be ended."""
        held = sorted(
            ((row, a) for a in answers if (row := self._held(token, a.check)) is not None),
            key=lambda each: each[1].check.envelope.id,
        )
        for outcome in (LocalOutcome.COMMIT, LocalOutcome.ROLLBACK):
            for row, answer in held:
                if answer.outcome is outcome:
                    self.end(row, outcome)
        for row, answer in held:
            if answer.outcome is LocalOutcome.UNKNOWN:
                row.last_error, row.token = answer.reason, None
        return {row.envelope.id for row, _ in held}

    def release(self, token: UUID, checks: Sequence[DueCheck]) -> None:
        """Make checks that did not run due at once, uncounted."""
        for check in checks:
            row = self._held(token, check)
            if row is not None:
                row.check_at, row.checks, row.token = self._database.now, row.checks - 1, None

    def park(self, *, limit: int) -> Sequence[Envelope]:
        """Settle messages as UNRESOLVED whose checks or time are used up."""
        now = self._database.now
        over = [
            row
            for row in self._halves()
            if row.due_at <= now or (row.checks >= PLAN.most and row.check_at <= now)
        ][:limit]
        for row in over:
            self._park(row)
        return [row.envelope for row in over]

    def end(self, row: OutboxRow, outcome: LocalOutcome) -> None:
        """Change the status of a message according to the outcome of its local transaction."""
        db = self._database
        row.check_at = row.last_error = row.token = None
        if outcome is LocalOutcome.ROLLBACK:
            db.move_outbox(row, OutboxStatus.DISCARDED, self._by)
            row.settled_at = db.now
            return
        db.move_outbox(row, OutboxStatus.INIT, self._by)
        row.seq, row.due_at = db.next_in_sequence(), db.now + row.send_delay
        row.waiting, row.settled_at = bool(row.send_delay), None

    def _park(self, row: OutboxRow) -> None:
        self._database.move_outbox(row, _UNRESOLVED, self._by)
        row.settled_at, row.check_at, row.token = self._database.now, None, None
        row.last_error = why_parked(row.checks, row.last_error, PLAN)

    def _halves(self) -> list[OutboxRow]:
        return [row for row in self._database.outbox.values() if row.status is _HALF]

    def _held(self, token: UUID, check: DueCheck) -> OutboxRow | None:
        row = self._database.outbox.get(check.envelope.id)
        return row if row and row.status is _HALF and row.token == token else None


class MemoryBarrier:
    """Decides whether a local transaction or its check came first (the port Barrier)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enter(self, local: Transaction, event_id: UUID) -> None:
        """Bind a local transaction to the outcome of a half message."""
        entered = self._database.barrier
        if event_id in entered:
            raise LateTransaction(f"{event_id} is resolved")
        local.lock((_BARRIER, event_id))
        local.write(lambda: entered.update({event_id: True}))

    def outcome_of(self, event_id: UUID) -> LocalOutcome:
        """Return the outcome of the local transaction; a missing one is excluded from now on."""
        db = self._database
        try:
            db.free((_BARRIER, event_id))
        except Blocked:
            return LocalOutcome.UNKNOWN
        committed = db.barrier.setdefault(event_id, False)
        return LocalOutcome.COMMIT if committed else LocalOutcome.ROLLBACK


def checking(world: World) -> list[Process[CheckBack] | Process[Parking]]:
    """Make the two checkers of the upstream bank's half messages, and their parking."""
    barrier = MemoryBarrier(world.a)

    def checker(envelope: Envelope) -> LocalOutcome:
        if not world.is_calm and world.schedule.chance(UNREACHABLE):
            raise DatabaseError("the ledger cannot be reached")
        outcome = barrier.outcome_of(envelope.id)
        if not world.is_calm and world.schedule.chance(UNREACHABLE / 4):
            raise DatabaseError("the ledger has answered, and the answer is lost")
        return outcome

    def check_back(process: Process[CheckBack]) -> CheckBack:
        return CheckBack(
            event_type=TYPE,
            store=_store(world, process),  # type: ignore[arg-type]
            checker=checker,
            # By the wall clock, on which the checkers here do not wait.
            timeout=timedelta(minutes=1),
            budget=timedelta(seconds=2),
            batch_size=2,
            clock=process.clock,
        )

    def parking(process: Process[Parking]) -> Parking:
        return Parking(store=_store(world, process), batch_size=2)  # type: ignore[arg-type]

    return [
        *(Process(world, f"checks {n}", check_back) for n in range(2)),
        Process(world, "parking", parking),
    ]


def write(
    world: World, client: Process[None], transfer: Transfer, envelope: Envelope
) -> LocalOutcome:
    """Make a transfer whose event is a half message; return the reported outcome."""
    db, event_id = world.a, envelope.id
    store = _store(world, client)
    delay = timedelta(seconds=transfer.delay) if transfer.delay else None
    world.writer_of(transfer).shards(client)
    store.prepare([NewHalfMessage(envelope=envelope, delay=delay)])
    outcome = LocalOutcome.COMMIT
    try:
        with db.transaction() as local:
            MemoryBarrier(db).enter(local, event_id)
            db.business.debit(local, transfer, event_id)
            client.before("commit of the local transaction")
            _refuse_unless_wanted(transfer)
        client.after("commit of the local transaction")
    except LateTransaction as late:
        raise DatabaseError("the client comes too late") from late
    except _RolledBack:
        # Half of the clients that roll back do not report it.
        if world.schedule.chance(0.5):
            return LocalOutcome.UNKNOWN
        outcome = LocalOutcome.ROLLBACK
    try:
        _messages(store).end([event_id], outcome)
    except IllegalTransition as otherwise:
        raise DatabaseError("its message has ended, or waits for an operator") from otherwise
    return outcome


def decide(world: World) -> None:
    """Let an operator inspect the ledger, and decide about unresolved messages."""
    store = MemoryHalfMessageStore(world.a, by="an operator")
    for row in world.a.outbox.values():
        if row.status is _UNRESOLVED:
            outcome = MemoryBarrier(world.a).outcome_of(row.envelope.id)
            if outcome is not LocalOutcome.UNKNOWN:
                world.say("an operator decides {} about {}", outcome, row.envelope.id)
                store.end(row, outcome)


class _RolledBack(Exception):
    pass


def _refuse_unless_wanted(transfer: Transfer) -> None:
    if not transfer.is_committed:
        raise _RolledBack


def _store(world: World, process: Process[object]) -> Interrupted:
    return Interrupted(process, MemoryHalfMessageStore(world.a, by=process.name))


def _messages(store: Interrupted) -> HalfMessages:
    return HalfMessages(
        store=store,  # type: ignore[arg-type]
        barrier_of=lambda _: None,
        to_envelope=lambda *_: None,  # type: ignore[arg-type,return-value]
        after_commit=lambda: None,
    )
