"""Half messages over SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from shieldtx.events import Envelope
from shieldtx.ports.half import CheckPlan, DueCheck, Preparation
from shieldtx.states import LocalOutcome, OutboxStatus
from shieldtx.store.dialects import dialect_of
from shieldtx.store.half_ends import end, locked
from shieldtx.store.refusals import refusal_of
from shieldtx.store.statements import half as sql
from shieldtx.store.statements.envelopes import ENVELOPE_WIDTH, envelope_of
from shieldtx.store.tables import Tables

_CHECKS, _REASON = ENVELOPE_WIDTH, ENVELOPE_WIDTH + 1


class SqlHalfStore:
    """Prepares, checks and ends half messages in transactions of its own (the port HalfStore)."""

    def __init__(self, engine: Engine, tables: Tables, *, shards: int, plan: CheckPlan) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._shards = shards
        self._plan = plan

    def prepare(self, messages: Sequence[Preparation]) -> None:
        """Store half messages; raises EventRefused for a business key used before."""
        t, d, plan = self._tables, self._dialect, self._plan
        rows = [sql.parameters_of(m, d, plan, shards=self._shards) for m in messages]
        try:
            with self._engine.begin() as connection:
                connection.execute(sql.insert(t, d, plan), rows)
        except IntegrityError as error:
            raise refusal_of(error, [m.envelope for m in messages]) or error from error

    def resolve(self, event_ids: Sequence[UUID], outcome: LocalOutcome) -> dict[UUID, OutboxStatus]:
        """End those that are HALF, in this order."""
        if not event_ids:
            return {}
        with self._engine.begin() as connection:
            before = locked(connection, self._tables, event_ids)
            for event_id in event_ids:
                if before.get(event_id) is OutboxStatus.HALF:
                    end(connection, self._tables, event_id, OutboxStatus.HALF, outcome)
        return before

    def claim_checks(self, event_type: str, *, limit: int) -> Sequence[DueCheck]:
        """Take messages that are due for a check."""
        t, d = self._tables, self._dialect
        with self._engine.begin() as connection:
            rows = connection.execute(
                sql.claim_checks(t, d, self._plan, event_type, limit=limit)
            ).all()
        return [
            DueCheck(envelope_of(row), row[_CHECKS] + 1) for row in sorted(rows, key=itemgetter(0))
        ]

    def start(self, check: DueCheck) -> bool:
        """Count a check."""
        with self._engine.begin() as connection:
            return connection.execute(sql.start(self._tables, check)).rowcount == 1

    def answer(self, check: DueCheck, outcome: LocalOutcome, *, reason: str) -> bool:
        """End a message, or keep why it could not be ended."""
        if outcome is not LocalOutcome.UNKNOWN:
            event_id = check.envelope.id
            return self.resolve([event_id], outcome).get(event_id) is OutboxStatus.HALF
        with self._engine.begin() as connection:
            noted = connection.execute(sql.note(self._tables, check, reason=reason))
            return noted.rowcount == 1

    def give_back(self, checks: Sequence[DueCheck]) -> None:
        """Let checks that were not made be due at once."""
        if not checks:
            return
        with self._engine.begin() as connection:
            for check in sorted(checks, key=lambda c: c.envelope.id):
                connection.execute(sql.give_back(self._tables, self._dialect, check))

    def park(self, *, limit: int) -> Sequence[Envelope]:
        """Settle messages as UNRESOLVED whose checks or time are used up."""
        t, d, plan = self._tables, self._dialect, self._plan
        with self._engine.begin() as connection:
            rows = connection.execute(sql.used_up(t, d, plan, limit=limit)).all()
            for row in rows:
                reason = _reason(row[_CHECKS], row[_REASON], plan)
                connection.execute(sql.park(t, d, row[0], reason=reason))
        return [envelope_of(row) for row in rows]


def _reason(checks: int, said: str | None, plan: CheckPlan) -> str:
    used_up = (
        f"{checks} checks are used up"
        if checks >= plan.most
        else f"older than {plan.max_age}, after {checks} checks"
    )
    return f"{used_up}; the last one said: {said}" if said else f"{used_up}; none was answered"
