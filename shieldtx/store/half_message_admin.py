"""Operator access to half messages: list, show, commit, roll back; audited."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import time as unix_time
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine, Row

from shieldtx.domain.events import Envelope, age_of
from shieldtx.domain.log_fields import event_fields
from shieldtx.domain.states import LocalOutcome, OutboxStatus
from shieldtx.errors import IllegalTransition
from shieldtx.ports.half_messages import Barrier
from shieldtx.store.dialects import dialect_of
from shieldtx.store.half_messages import HalfMessageOutcomes
from shieldtx.store.statements import audit
from shieldtx.store.statements import half_messages as sql
from shieldtx.store.statements.envelope_columns import envelope_of
from shieldtx.store.tables import Tables

log = logging.getLogger(__name__)

OPEN = (OutboxStatus.UNRESOLVED, OutboxStatus.HALF)
"""The states in which an operator may commit or roll back."""

_IN_FLIGHT = "its local transaction is in flight, by the barrier: try again when it has ended"
_COMMITTED_NONE = (
    "the barrier has no committed local transaction of it: it has not come, is in flight or rolled "
    "back. Try again when it has committed; `shieldtx half rollback` shuts it out"
)

_LEADS_TO = {
    LocalOutcome.COMMIT: OutboxStatus.INIT,
    LocalOutcome.ROLLBACK: OutboxStatus.DISCARDED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfMessage:
    """A half message, in any state."""

    envelope: Envelope
    status: OutboxStatus
    checks: int
    check_at: datetime | None
    """When the next check is due."""
    delay: timedelta | None
    """The chosen delay, from the commit on."""
    at: datetime | None
    """The chosen due time."""
    settled_at: datetime | None
    reason: str
    """The reason that the last check returned, or the reason why no further check follows."""

    def __str__(self) -> str:
        """Name the row."""
        return f"half message {self.envelope.id}"


class SqlHalfMessageAdmin:
    """Lists half messages, commits them and rolls them back, with an audit entry each."""

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        *,
        barrier_of: Callable[[str, LocalOutcome], Barrier | None] = lambda *_: None,
        barrier_retention: timedelta = timedelta(days=7),
    ) -> None:
        """Read the barrier of an event type before a decision, if there is a barrier.

        Rows of the barrier stay for `barrier_retention`.
        """
        self._barrier_retention = barrier_retention
        self._barrier_of = barrier_of
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._outcomes = HalfMessageOutcomes(tables, self._dialect)

    def latest(
        self,
        *,
        limit: int,
        topic: str | None = None,
        event_type: str | None = None,
        key: str | None = None,
        biz_key: str | None = None,
    ) -> Sequence[HalfMessage]:
        """Return UNRESOLVED messages, the latest first, then HALF messages, the oldest first.

        Returns up to `limit` of each; `topic` is a logical topic.
        """
        wanted = {"topic": topic, "event_type": event_type, "key": key, "biz_key": biz_key}
        statements = [
            sql.latest(self._tables, status=status, limit=limit, **wanted) for status in OPEN
        ]
        with self._engine.connect() as connection:
            return [_message(row) for s in statements for row in connection.execute(s)]

    def find(self, event_id: UUID) -> HalfMessage | None:
        """Return an event that was prepared as a half message, in any status."""
        with self._engine.connect() as connection:
            row = connection.execute(sql.one(self._tables, event_id)).one_or_none()
        return None if row is None else _message(row)

    def decide(self, messages: Sequence[HalfMessage], outcome: LocalOutcome, *, who: str) -> None:
        """Commit or roll back messages: all or none, with an audit entry each.

        A rollback first rejects local transactions that may still come. Raises IllegalTransition,
        which names the first message that changed, is resolved, or contradicts the barrier.
        """
        for message in messages:
            self._refuse_contradiction(message, outcome)
        ids = [message.envelope.id for message in messages]
        with self._engine.begin() as connection:
            now = self._outcomes.lock(connection, ids)
            for message in messages:
                status = now.get(message.envelope.id)
                require_open(message, status)
                self._outcomes.write(connection, [message.envelope.id], message.status, outcome)
                self._note(connection, message, outcome, who)

    def _refuse_contradiction(self, message: HalfMessage, outcome: LocalOutcome) -> None:
        barrier = self._barrier_of(message.envelope.type, outcome)
        if barrier is None or message.status not in OPEN:
            return
        event_id, is_commit = message.envelope.id, outcome is LocalOutcome.COMMIT
        ended = barrier.visible_outcome(event_id)
        if ended is not LocalOutcome.COMMIT and self._is_forgotten(message):
            log.warning(
                "barrier row may be purged",
                extra={
                    "action": "barrier_forgotten",
                    **event_fields(message.envelope),
                    "retention": str(self._barrier_retention),
                    "advice": "Find out yourself whether its local transaction has committed: the "
                    "message is older than the retention of the barrier's rows",
                },
            )
            if is_commit:
                return
        if not is_commit:
            # Only a rollback rejects a local transaction that may still come.
            ended = barrier.outcome_of(event_id)
        if ended is LocalOutcome.UNKNOWN:
            raise IllegalTransition(f"{message}: {_COMMITTED_NONE if is_commit else _IN_FLIGHT}")
        if ended is not outcome:
            raise IllegalTransition(
                f"{message}: the barrier shows that its local transaction ended with {ended}: "
                f"`shieldtx half {ended.lower()}` decides so"
            )

    def _is_forgotten(self, message: HalfMessage) -> bool:
        """Whether a row of the local transaction may have been purged."""
        age = age_of(message.envelope.id, unix_time())
        return age is not None and age >= self._barrier_retention

    def _note(
        self, connection: Connection, message: HalfMessage, outcome: LocalOutcome, who: str
    ) -> None:
        detail = {
            "from": message.status,
            "to": _LEADS_TO[outcome],
            "event_type": message.envelope.type,
            "source": message.envelope.source,
            "checks": message.checks,
            "reason": message.reason,
        }
        connection.execute(
            audit.record(
                self._tables,
                self._dialect,
                who=who,
                action=f"half {outcome.lower()}",
                subject=str(message),
                detail=json.dumps(detail, ensure_ascii=False),
            )
        )


def require_open(message: HalfMessage, status: OutboxStatus | None) -> None:
    """Raise IllegalTransition unless the current status is that of the message, and open."""
    if status is not message.status or status not in OPEN:
        raise IllegalTransition(
            f"{message} is {status or 'gone'}: an operator decides about UNRESOLVED and HALF ones, "
            "see `shieldtx half list`"
        )


def _message(row: Row[*tuple[Any, ...]]) -> HalfMessage:
    return HalfMessage(
        envelope=envelope_of(row),
        status=OutboxStatus(row.status),
        checks=row.checks or 0,
        check_at=row.check_at,
        delay=None if row.send_delay is None else timedelta(seconds=row.send_delay),
        at=row.send_at,
        settled_at=row.settled_at,
        reason=row.last_error or "",
    )
