"""The consumer's rows: received, attempted, settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Engine, Update, select
from sqlalchemy.orm import Session

from shieldtx._process_tokens import process_token
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.errors import LeaseLost
from shieldtx.ports.broker import BATCH_BYTES
from shieldtx.ports.inbox import Attempt, Handled, IncomingEvent, Origin, Original, Parked, Receipt
from shieldtx.ports.savepoint import Savepoint
from shieldtx.store.batch_savepoint import BatchSavepoint
from shieldtx.store.compensation import CompensationRows
from shieldtx.store.dialects import LOCKED_AT, autocommit_engine, dialect_of
from shieldtx.store.guarded_session import (
    Settlement,
    commits_refused,
    end_event,
    guarded_session,
    is_left_as_found,
    lock_rows,
    note_effect,
    settle,
)
from shieldtx.store.halving import receive_in_halves
from shieldtx.store.inbox_receiver import InboxReceiver
from shieldtx.store.statements import inbox as sql
from shieldtx.store.tables import Tables
from shieldtx.store.unfinished_rows import UnfinishedRows

_COMPENSATED: Final = "shieldtx.compensated"
"""The key in the session's info of further parameters for the settling statement."""

_SETTLED: Final = "shieldtx.settled"
"""The key in the session's info of the attempts of a batch that are settled, if not all."""

_REFUSED: Final = "shieldtx.refused"
"""The key in the session's info of the reasons of refused attempts of a batch, by event."""


class SqlInboxStore:
    """Receives, leases and settles inbox rows (the port InboxStore)."""

    def __init__(self, engine: Engine, tables: Tables, *, batch_bytes: int = BATCH_BYTES) -> None:
        """Find due rows with payloads of up to `batch_bytes` at a time, or one larger row."""
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._autocommit = autocommit_engine(engine)
        self._unfinished = UnfinishedRows(engine, tables, batch_bytes=batch_bytes)
        self._receiver = InboxReceiver(tables, self._dialect)
        self._compensation = CompensationRows(tables, self._dialect)
        self._start_attempt = sql.start_attempt(tables, self._dialect)
        self._lock_row = sql.lock_row(tables, self._dialect)
        self._lock_batch = sql.lock_batch(tables, self._dialect)
        self._processed = sql.processed(tables, self._dialect)
        self._compensated = sql.compensated(tables, self._dialect)
        self._all_processed = sql.all_processed(tables, self._dialect)
        self._all_refused = sql.all_refused(tables, self._dialect)
        self._release = sql.release(tables, self._dialect)

    def receive(
        self, group: str, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]
    ) -> Receipt:
        """Store a batch in one transaction; the unique keys decide what is new.

        If the database refuses the batch, its parts are stored in one transaction each (`halving`).
        """

        def at_once(arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]) -> Receipt:
            with self._engine.begin() as connection:
                return self._receiver.receive(connection, group, arrivals, parked)

        return receive_in_halves(at_once, arrivals, parked, group=group)

    def due(self, group: str, *, handled: Handled, limit: int) -> Sequence[Envelope]:
        """Return rows that may be processed now, of the types that the worker handles."""
        return self._unfinished.due(group, handled=handled, limit=limit)

    def longest_due(self, group: str, *, handled: Handled) -> Envelope | None:
        """Return the row of these types that has been due for longest."""
        return self._unfinished.longest_due(group, handled=handled)

    def newest_unattempted(self, group: str, *, handled: Handled) -> Envelope | None:
        """Return the row of these types that arrived last, of those without an attempt."""
        return self._unfinished.newest_unattempted(group, handled=handled)

    def pending(self, group: str, *, handled: Handled) -> Mapping[Origin, int]:
        """Count the unfinished rows of these types by their origin."""
        return self._unfinished.pending(group, handled=handled)

    def unhandled(
        self, group: str, *, handled: Handled, limit: int
    ) -> Mapping[tuple[str, TxKind], int]:
        """Count the unfinished rows of all other types."""
        return self._unfinished.unhandled(group, handled=handled, limit=limit)

    def start_attempt(
        self,
        group: str,
        envelope: Envelope,
        *,
        lease: timedelta,
        max_attempts: int,
        is_probe: bool = False,
    ) -> Attempt | None:
        """Count an attempt and commit, before the handler runs."""
        token = process_token()
        given = sql.attempt_parameters(group, envelope.id, envelope.source, token, lease)
        with self._autocommit.begin() as connection:
            started = connection.execute(self._start_attempt, given | {sql.IS_PROBE: is_probe})
            if (row := started.one_or_none()) is None:
                return None
        number, partition, offset = row
        return Attempt(
            envelope=envelope,
            group=group,
            number=min(number, max_attempts),
            token=token,
            exhausted=number > max_attempts,
            partition=partition,
            offset=offset,
        )

    @contextmanager
    def effect(self, attempt: Attempt) -> Iterator[Session]:
        """Open the transaction that holds PROCESSED and the handler's writes."""
        parameters = sql.attempt_parameters(
            attempt.group, attempt.envelope.id, attempt.envelope.source, attempt.token
        )
        with guarded_session(self._engine, "handler") as (session, connection):
            # First of all: a worker that takes the row over has to wait for this transaction.
            locked = lock_rows(connection, self._lock_row, parameters)
            if locked.number != 1:
                raise LeaseLost(
                    f"event {attempt.envelope.id} of group {attempt.group!r} was taken over before "
                    f"attempt {attempt.number} began; raise the handler's lease if this is frequent"
                )
            with commits_refused(session):
                yield session
            if (compensated := session.info.get(_COMPENSATED)) is None:
                settle(session, locked, self._processed, parameters)
            else:
                settle(session, locked, self._compensated, parameters | compensated)

    @contextmanager
    def effects(self, attempts: Sequence[Attempt]) -> Iterator[Session]:
        """Open the transaction that holds PROCESSED of a batch and its handlers' writes."""
        parameters = self._of_batch(attempts)
        with guarded_session(self._engine, "handler") as (session, connection):
            locked = lock_rows(connection, self._lock_batch, parameters)
            if locked.number != len(attempts):
                raise LeaseLost(
                    f"{len(attempts) - locked.number} of {len(attempts)} events of group "
                    f"{attempts[0].group!r} were taken over before their attempt began; raise the "
                    "handlers' leases if this is frequent"
                )
            with commits_refused(session):
                yield session
            settled = session.info.pop(_SETTLED, attempts)
            refusals = session.info.pop(_REFUSED, {})
            applied = [a.envelope.id for a in settled if a.envelope.id not in refusals]
            others = [self._refused(attempts[0], refusals)] if refusals else ()
            locked = locked._replace(number=len(applied))
            parameters |= sql.batch_ids(applied)
            settle(session, locked, self._all_processed, parameters, *others)

    def reset_session(self, session: Session) -> None:
        """Prepare the session of an effect for the next handler; nothing in it is undone."""
        end_event(session)

    def note_effect(self, session: Session) -> None:
        """Mark the complete effect of the handler: the mark shows whether it is undone later."""
        note_effect(session)

    def ends_after(self, session: Session, attempts: Sequence[Attempt], applied: int) -> bool:
        """Settle only the first attempts if the last handler has left state on the session."""
        if is_left_as_found(session):
            return False
        self.settle_only(session, attempts[:applied])
        return True

    def settle_only(self, session: Session, attempts: Sequence[Attempt]) -> None:
        """Settle only these attempts of a batch."""
        session.info[_SETTLED] = attempts

    def savepoint(self, session: Session, *, is_doubtful: bool = False) -> Savepoint:
        """Set a savepoint around the next handlers of a batch."""
        return BatchSavepoint(session, is_doubtful=is_doubtful)

    def refuse(self, session: Session, attempt: Attempt, *, reason: str) -> None:
        """Settle an attempt of a batch as MAX_RECONSUMED."""
        session.info.setdefault(_REFUSED, {})[attempt.envelope.id] = reason

    def _refused(self, attempt: Attempt, reasons: Mapping[UUID, str]) -> Settlement:
        given = sql.refusal_parameters(attempt.group, reasons, attempt.token)
        return Settlement(self._all_refused, given, len(reasons))

    def release(self, attempts: Sequence[Attempt]) -> None:
        """Undo the counted start of the attempts of one batch that still own their rows."""
        if attempts:
            with self._autocommit.begin() as connection:
                connection.execute(self._release, self._of_batch(attempts))

    def postpone(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Defer the row until its next attempt."""
        return self._deferred(sql.postpone, attempt, delay, reason)

    def defer(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Defer the row, and undo the counted start of the attempt."""
        return self._deferred(sql.defer, attempt, delay, reason)

    def _deferred(
        self, statement_of: Callable[..., Update], attempt: Attempt, delay: timedelta, reason: str
    ) -> bool:
        statement = statement_of(
            self._tables,
            self._dialect,
            group=attempt.group,
            event_id=attempt.envelope.id,
            token=attempt.token,
            delay=delay,
            reason=reason,
        )
        with self._autocommit.begin() as connection:
            return connection.execute(statement).rowcount == 1

    def note(self, attempts: Sequence[Attempt], *, reason: str) -> None:
        """Record why the process of these attempts ends."""
        statement = sql.note(self._tables, self._dialect, reason=reason)
        with self._autocommit.begin() as connection:
            connection.execute(statement, self._of_batch(attempts))

    def give_up(
        self,
        attempt: Attempt,
        *,
        reason: str,
        in_transaction: Callable[[Session], Any] | None,
        parked: bool = False,
    ) -> bool:
        """Settle the row as MAX_RECONSUMED or DEAD, with `in_transaction` in the transaction."""
        is_dead = parked or attempt.envelope.kind is TxKind.ROLLBACK
        statement = sql.give_up(
            self._tables,
            self._dialect,
            group=attempt.group,
            event_id=attempt.envelope.id,
            token=attempt.token,
            target=InboxStatus.DEAD if is_dead else InboxStatus.MAX_RECONSUMED,
            attempts=attempt.number,
            reason=reason,
        )
        with Session(self._engine) as session, session.begin():
            if session.connection().execute(statement).rowcount != 1:
                return False
            if in_transaction is not None:
                in_transaction(session)
            return True

    def original(
        self, session: Session, attempt: Attempt, *, written_here: bool
    ) -> Original | None:
        """Find and lock the event that a rollback takes back."""
        return self._compensation.original(session.connection(), attempt, written_here=written_here)

    def mark_compensated(self, session: Session, attempt: Attempt) -> None:
        """Make the rollback's row name its original and the present time when it is settled."""
        if (original := attempt.envelope.causation_id) is not None:
            since = session.connection().scalar(select(self._dialect.now()))
            session.info[_COMPENSATED] = {sql.COMPENSATED: original, LOCKED_AT: since}

    def fence(self, session: Session, attempt: Attempt) -> bool:
        """Store the tombstone of an event whose rollback came first."""
        return self._compensation.fence(session.connection(), attempt)

    def fence_parked(self, session: Session, attempt: Attempt) -> None:
        """Settle the DEAD event that a rollback takes back as FENCED."""
        self._compensation.fence_parked(session.connection(), attempt)

    def cause(self, session: Session, envelope: Envelope) -> Envelope | None:
        """Return the received event, or rollback, whose handler wrote `envelope`."""
        return self._compensation.cause(session.connection(), envelope)

    def _of_batch(self, attempts: Sequence[Attempt]) -> dict[str, Any]:
        ids = [attempt.envelope.id for attempt in attempts]
        return sql.batch_parameters(attempts[0].group, ids, attempts[0].token)
