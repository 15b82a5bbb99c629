"""The inbox port over SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from shieldtx.errors import LeaseLost
from shieldtx.events import Envelope
from shieldtx.ports import Arrival, Attempt, Origin, Original, Parked, Receipt
from shieldtx.states import InboxStatus, TxKind
from shieldtx.store.dialects import dialect_of
from shieldtx.store.lent_session import check_intact, commits_refused, lend
from shieldtx.store.reception import Reception
from shieldtx.store.single import for_single_statements
from shieldtx.store.statements import compensation
from shieldtx.store.statements import inbox as sql
from shieldtx.store.statements.envelopes import ENVELOPE_WIDTH, envelope_of, values_of
from shieldtx.store.tables import Tables


class SqlInboxStore:
    """Receives, leases and settles inbox rows (the port InboxStore)."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._single = for_single_statements(engine)
        self._reception = Reception(tables, self._dialect)
        # Run for each event or batch, and therefore built once.
        self._due = sql.due(tables, self._dialect)
        self._pending = sql.pending(tables)
        self._start_attempt = sql.start_attempt(tables, self._dialect)
        self._processed = sql.processed(tables, self._dialect)
        self._all_processed = sql.all_processed(tables, self._dialect)
        self._release = sql.release(tables, self._dialect)

    def receive(self, group: str, arrivals: Sequence[Arrival], parked: Sequence[Parked]) -> Receipt:
        """Store a batch in one transaction; the unique keys decide what is new."""
        with self._engine.begin() as connection:
            return self._reception.receive(connection, group, arrivals, parked)

    def due(self, group: str, *, limit: int) -> Sequence[Envelope]:
        """Return rows whose turn it is."""
        with self._single.begin() as connection:
            rows = connection.execute(self._due, sql.due_parameters(group, limit))
            return [envelope_of(row) for row in rows]

    def pending(self, group: str) -> Mapping[Origin, int]:
        """Count the unfinished rows by where they came from."""
        with self._single.begin() as connection:
            rows = connection.execute(self._pending, sql.group_parameters(group)).all()
        return {(topic, TxKind(kind), partition): rows for topic, kind, partition, rows in rows}

    def start_attempt(
        self, group: str, envelope: Envelope, *, lease: timedelta, max_attempts: int
    ) -> Attempt | None:
        """Count an attempt and commit, before the handler runs."""
        token = uuid4()
        parameters = sql.attempt_parameters(group, envelope.id, envelope.source, token, lease)
        with self._single.begin() as connection:
            started = connection.execute(self._start_attempt, parameters).one_or_none()
        if started is None:
            return None
        number, partition, offset = started
        return Attempt(
            envelope=envelope,
            group=group,
            number=min(number, max_attempts),
            token=token,
            exhausted=number > max_attempts,
            place=None if offset is None else (partition, offset),
        )

    @contextmanager
    def effect(self, attempt: Attempt) -> Iterator[Session]:
        """Open the transaction that holds PROCESSED and the handler's writes."""
        parameters = sql.attempt_parameters(
            attempt.group, attempt.envelope.id, attempt.envelope.source, attempt.token
        )
        with lend(self._engine, "handler") as (session, connection):
            # First of all, for its lock: who takes the row over has to wait for the end of this.
            if connection.execute(self._processed, parameters).rowcount != 1:
                raise LeaseLost(
                    f"event {attempt.envelope.id} of group {attempt.group!r} was taken over before "
                    f"attempt {attempt.number} began; raise the handler's lease if this is frequent"
                )
            yield session

    @contextmanager
    def effects(self, attempts: Sequence[Attempt]) -> Iterator[Session]:
        """Open the transaction that holds PROCESSED of a batch and its handlers' writes."""
        with lend(self._engine, "handler") as (session, connection):
            settled = connection.execute(self._all_processed, self._of_batch(attempts)).rowcount
            if settled != len(attempts):
                raise LeaseLost(
                    f"{len(attempts) - settled} of {len(attempts)} events of group "
                    f"{attempts[0].group!r} were taken over before their attempt began; raise the "
                    "handlers' leases if this is frequent"
                )
            with commits_refused(session):
                yield session

    def clear(self, session: Session) -> None:
        """Make the session of an effect as new for the next handler; nothing in it is undone."""
        check_intact(session)
        if len(session.identity_map):
            session.expunge_all()

    def release(self, attempts: Sequence[Attempt]) -> None:
        """Take back the counted start of attempts of one batch, of those that own their row."""
        if attempts:
            with self._single.begin() as connection:
                connection.execute(self._release, self._of_batch(attempts))

    def postpone(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Let the row wait for its next attempt."""
        statement = sql.postpone(
            self._tables,
            self._dialect,
            group=attempt.group,
            event_id=attempt.envelope.id,
            token=attempt.token,
            delay=delay,
            reason=reason,
        )
        with self._single.begin() as connection:
            return connection.execute(statement).rowcount == 1

    def give_up(
        self, attempt: Attempt, *, reason: str, also: Callable[[Session], Any] | None
    ) -> bool:
        """Settle the row as MAX_RECONSUMED or DEAD, with `also` in the same transaction."""
        is_rollback = attempt.envelope.kind is TxKind.ROLLBACK
        statement = sql.give_up(
            self._tables,
            self._dialect,
            group=attempt.group,
            event_id=attempt.envelope.id,
            token=attempt.token,
            target=InboxStatus.DEAD if is_rollback else InboxStatus.MAX_RECONSUMED,
            attempts=attempt.number,
            reason=reason,
        )
        with Session(self._engine) as session, session.begin():
            if session.connection().execute(statement).rowcount != 1:
                return False
            if also is not None:
                also(session)
            return True

    def original(self, session: Session, attempt: Attempt, *, own: bool) -> Original | None:
        """Find and lock what a rollback takes back."""
        t, rollback = self._tables, attempt.envelope
        if rollback.causation_id is None:
            return None
        connection = session.connection()
        if own:
            # The lock on the row is a shared one.
            self._dialect.compensate_alone(connection, attempt.group, rollback.causation_id)
        statement = (
            compensation.own_original(t, rollback.causation_id)
            if own
            else compensation.received_original(
                t, attempt.group, rollback.causation_id, rollback.causation_source or ""
            )
        )
        row = connection.execute(statement).one_or_none()
        if row is None:
            return None
        compensated = connection.scalars(
            compensation.is_compensated(t, attempt.group, rollback.causation_id)
        ).one()
        return Original(
            envelope=envelope_of(row),
            status=None if own else InboxStatus(row[ENVELOPE_WIDTH]),
            compensated=bool(compensated),
        )

    def mark_compensated(self, session: Session, attempt: Attempt) -> None:
        """Note in the rollback's row that its original is compensated."""
        rollback = attempt.envelope
        if rollback.causation_id is not None:
            session.connection().execute(
                compensation.mark_compensated(
                    self._tables,
                    group=attempt.group,
                    event_id=rollback.id,
                    source=rollback.source,
                    original_id=rollback.causation_id,
                )
            )

    def fence(self, session: Session, attempt: Attempt) -> bool:
        """Leave the tombstone of an event whose rollback came first."""
        rollback = attempt.envelope
        if rollback.causation_id is None or rollback.causation_source is None:
            return False
        tombstone = rollback.evolve(
            id=rollback.causation_id,
            source=rollback.causation_source,
            kind=TxKind.COMMIT,
            biz_key=None,
            payload="null",
            causation_id=rollback.id,
            causation_source=rollback.source,
        )
        row = (
            values_of(tombstone)
            | self._dialect.next_in_sequence()
            | {"consumer_group": attempt.group, "event_time": rollback.time}
        )
        statement = compensation.fence(self._tables, self._dialect)
        return session.connection().execute(statement, row).one_or_none() is not None

    def cause(self, session: Session, envelope: Envelope) -> Envelope | None:
        """Return the received event whose handler wrote `envelope`."""
        if envelope.causation_id is None or envelope.causation_source is None:
            return None
        row = (
            session.connection()
            .execute(
                compensation.received_by_anybody(
                    self._tables, envelope.causation_id, envelope.causation_source
                )
            )
            .one_or_none()
        )
        return None if row is None else envelope_of(row)

    def _of_batch(self, attempts: Sequence[Attempt]) -> dict[str, Any]:
        first, ids = attempts[0], [attempt.envelope.id for attempt in attempts]
        return sql.batch_parameters(first.group, ids, first.token)
