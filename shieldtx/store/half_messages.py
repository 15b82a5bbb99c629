"""Half messages over SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import itemgetter
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import LocalOutcome, OutboxStatus
from shieldtx.ports.half_messages import (
    CheckClaim,
    CheckResult,
    CheckSchedule,
    DueCheck,
    NewHalfMessage,
)
from shieldtx.store.dialects import Dialect, autocommit_engine, dialect_of
from shieldtx.store.outbox_writer import refusal_of
from shieldtx.store.shard_count import ShardCount
from shieldtx.store.statements import half_message_checks
from shieldtx.store.statements import half_messages as sql
from shieldtx.store.statements.envelope_columns import ENVELOPE_WIDTH, envelope_of
from shieldtx.store.tables import Tables

_CHECKS, _REASON = ENVELOPE_WIDTH, ENVELOPE_WIDTH + 1


class SqlHalfMessageStore:
    """Prepares, checks and resolves half messages, each in its own transaction."""

    def __init__(
        self, engine: Engine, tables: Tables, *, shards: int | None = None, plan: CheckSchedule
    ) -> None:
        """Write into the shards of the tables; `shards` is the number that the settings expect."""
        self._engine = engine
        self._autocommit = autocommit_engine(engine)
        self._tables = tables
        self._dialect = d = dialect_of(engine.dialect)
        self._shards = ShardCount(tables, setting=shards)
        self._plan = plan
        self._outcomes = HalfMessageOutcomes(tables, d)
        self._insert = sql.insert(tables, d, plan)
        self._end_alone = {
            LocalOutcome.COMMIT: sql.commit_alone(tables, d),
            LocalOutcome.ROLLBACK: sql.discard(tables, d, OutboxStatus.HALF),
        }
        self._types_due = half_message_checks.types_due(tables, d, plan)
        self._due = half_message_checks.due(tables, d, plan)
        self._begin = half_message_checks.begin(tables, d, plan)
        self._lock_checks = half_message_checks.lock_checks(tables, d)
        self._note = half_message_checks.note(tables)
        self._release = half_message_checks.release(tables, d)
        self._park = sql.park(tables, d)

    def prepare(self, messages: Sequence[NewHalfMessage]) -> None:
        """Store half messages; raises EventRefused for a business key used before."""
        d, plan = self._dialect, self._plan
        # Several messages are stored all or none; one message needs no BEGIN and COMMIT.
        engine = self._autocommit if len(messages) == 1 else self._engine
        try:
            with engine.begin() as connection:
                shards = self._shards.of(connection)
                rows = [sql.parameters_of(m, d, plan, shards=shards) for m in messages]
                connection.execute(self._insert, rows)
        except IntegrityError as error:
            self._shards.refuse(error, connection)
            raise refusal_of(error, [m.envelope for m in messages]) or error from error

    def resolve(self, event_ids: Sequence[UUID], outcome: LocalOutcome) -> dict[UUID, OutboxStatus]:
        """Resolve the HALF messages, in this order; return the statuses before."""
        if not event_ids:
            return {}
        # Mostly there is one HALF message: then one statement is the fastest.
        if len(event_ids) == 1 and self._is_ended_alone(event_ids[0], outcome):
            return {event_ids[0]: OutboxStatus.HALF}
        with self._engine.begin() as connection:
            before = self._outcomes.lock(connection, event_ids)
            half = [i for i in dict.fromkeys(event_ids) if before.get(i) is OutboxStatus.HALF]
            self._outcomes.write(connection, half, OutboxStatus.HALF, outcome)
        return before

    def _is_ended_alone(self, event_id: UUID, outcome: LocalOutcome) -> bool:
        parameters = sql.end_parameters(self._dialect, event_id)
        # If an engine sends BEGIN by hand, even this statement needs a commit.
        with self._autocommit.begin() as connection:
            return connection.execute(self._end_alone[outcome], parameters).rowcount == 1

    def types_due(self, event_types: Sequence[str]) -> Collection[str]:
        """Return the given event types that have a message due for a check."""
        if not event_types:
            return []
        asked = half_message_checks.types_due_parameters(event_types)
        with self._autocommit.begin() as connection:
            return connection.scalars(self._types_due, asked).all()

    def half_types(self, event_ids: Sequence[UUID]) -> dict[UUID, str]:
        """Return the event types of the messages that are HALF."""
        statement = sql.half_types(self._tables, self._dialect, event_ids)
        with self._autocommit.begin() as connection:
            return {row[0]: row[1] for row in connection.execute(statement)}

    def claim_checks(self, event_type: str, *, limit: int) -> CheckClaim:
        """Claim messages that are due for a check."""
        token = uuid4()
        with self._engine.begin() as connection:
            asked = half_message_checks.due_parameters(event_type, limit)
            due = [(row[0], row[1]) for row in connection.execute(self._due, asked)]
            ids = _checked_together(due)
            rows = (
                connection.execute(self._begin, half_message_checks.parameters(token, ids)).all()
                if ids
                else []
            )
        return CheckClaim(
            token=token,
            checks=[
                DueCheck(envelope_of(row), row[_CHECKS]) for row in sorted(rows, key=itemgetter(0))
            ],
            more=len(due) == limit or len(ids) < len(due),
        )

    def answer(self, token: UUID, answers: Sequence[CheckResult]) -> Collection[UUID]:
        """Resolve messages, or record why they could not be resolved, in one transaction."""
        by_id = {a.check.envelope.id: a for a in answers}
        with self._engine.begin() as connection:
            ids = half_message_checks.parameters(token, list(by_id))
            # In the order of their ids, which is the order of their preparation.
            locked = connection.scalars(self._lock_checks, ids).all()
            for outcome in (LocalOutcome.COMMIT, LocalOutcome.ROLLBACK):
                ended = [event_id for event_id in locked if by_id[event_id].outcome is outcome]
                self._outcomes.write(connection, ended, OutboxStatus.HALF, outcome)
            unknown = [
                half_message_checks.note_parameters(token, event_id, reason=by_id[event_id].reason)
                for event_id in locked
                if by_id[event_id].outcome is LocalOutcome.UNKNOWN
            ]
            if unknown:
                connection.execute(self._note, unknown)
        return set(locked)

    def release(self, token: UUID, unmade: Sequence[DueCheck]) -> None:
        """Make checks that were not made due at once."""
        if not unmade:
            return
        parameters = half_message_checks.parameters(token, [check.envelope.id for check in unmade])
        with self._engine.begin() as connection:
            connection.execute(self._lock_checks, parameters).all()
            connection.execute(self._release, parameters)

    def park(self, *, limit: int) -> Sequence[Envelope]:
        """Settle messages as UNRESOLVED whose checks or time are used up."""
        t, d, plan = self._tables, self._dialect, self._plan
        with self._engine.begin() as connection:
            rows = connection.execute(sql.used_up(t, d, plan, limit=limit)).all()
            parked = [
                sql.park_parameters(row[0], reason=_reason(row[_CHECKS], row[_REASON], plan))
                for row in rows
            ]
            if parked:
                connection.execute(self._park, parked)
        return [envelope_of(row) for row in rows]


class HalfMessageOutcomes:
    """Locks half messages and writes their outcomes, in a transaction of the caller."""

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self._tables = tables
        self._dialect = dialect

    def lock(self, connection: Connection, event_ids: Sequence[UUID]) -> dict[UUID, OutboxStatus]:
        """Lock messages and return their statuses; omit unknown messages."""
        statement = sql.locked(self._tables, self._dialect, event_ids)
        return {row[0]: OutboxStatus(row[1]) for row in connection.execute(statement)}

    def write(
        self,
        connection: Connection,
        event_ids: Sequence[UUID],
        source: OutboxStatus,
        outcome: LocalOutcome,
    ) -> None:
        """Move locked messages from the status `source` to their outcome, in this order."""
        if not event_ids:
            return
        build = sql.commit if outcome is LocalOutcome.COMMIT else sql.discard
        statement = build(self._tables, self._dialect, source)
        each = [sql.end_parameters(self._dialect, event_id) for event_id in event_ids]
        connection.execute(statement, each)


def _checked_together(due: Sequence[tuple[UUID, bool]]) -> list[UUID]:
    """Return which due messages are checked together.

    A message whose last check had no result is checked alone: if the checker dies of it again, no
    other message's check is lost.
    """
    if due and due[0][1]:
        return [due[0][0]]
    return [event_id for event_id, is_unanswered in due if not is_unanswered]


def _reason(checks: int, answer: str | None, plan: CheckSchedule) -> str:
    used_up = (
        f"{checks} checks are used up"
        if checks >= plan.most
        else f"older than {plan.max_age}, after {checks} checks"
    )
    return (
        f"{used_up}; the last one returned: {answer}" if answer else f"{used_up}; none was answered"
    )
