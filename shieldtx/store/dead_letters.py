"""Dead letters: FAILED events, DEAD compensations and parked records, and their replay."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine, Row

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.errors import IllegalTransition
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import audit
from shieldtx.store.statements import dead_letters as sql
from shieldtx.store.statements import inbox as inbox_sql
from shieldtx.store.statements import outbox as outbox_sql
from shieldtx.store.statements import repair as repair_sql
from shieldtx.store.statements.envelope_columns import envelope_of
from shieldtx.store.tables import Tables

Status = OutboxStatus | InboxStatus

REPLAY: dict[Status, Status] = {
    OutboxStatus.FAILED: OutboxStatus.INIT,
    InboxStatus.DEAD: InboxStatus.PROCESSING,
}
"""The states from which an operator may replay, and the states afterwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """An event's row in the outbox or, with a `group`, in the inbox of that group."""

    envelope: Envelope
    group: str | None
    """None if the event is in the outbox of this service."""
    status: Status
    attempts: int
    settled_at: datetime | None
    reason: str
    """The last error."""
    unconfirmed: bool
    """An attempt without confirmation may have delivered this event of the outbox."""

    def __str__(self) -> str:
        """Name the row."""
        where = "the outbox" if self.group is None else f"the inbox of group {self.group}"
        return f"event {self.envelope.id} in {where}"

    @property
    def can_be_replayed(self) -> bool:
        """Whether an operator may replay the dead letter."""
        return self.status in REPLAY


@dataclass(frozen=True, kw_only=True, slots=True)
class ParkedRecord:
    """A record that could not become an inbox row, as it was received."""

    group: str
    record: ReceivedRecord
    reason: str
    parked_at: datetime
    digest: str = ""
    """Of the content: records of a topic and of a recreated topic may have the same offset."""
    discarded_at: datetime | None = None
    """None if the record waits for an operator."""

    def __str__(self) -> str:
        """Name the row."""
        return f"parked record {self.ref}"

    @property
    def ref(self) -> str:
        """The name of the record; offsets are not unique after a topic was recreated."""
        place = f"{self.group}/{self.record.topic}/{self.record.partition}/{self.record.offset}"
        return f"{place}/{self.digest}" if self.digest else place


class SqlDeadLetters:
    """Lists dead letters and replays them, with an audit entry each."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)

    def latest(
        self,
        *,
        limit: int,
        group: str | None = None,
        topic: str | None = None,
        status: Status | None = None,
    ) -> Sequence[DeadLetter]:
        """Return up to `limit` dead letters, the latest first; `topic` is a logical topic.

        With a `group`, only dead letters of its inbox; with a `status`, only FAILED or only DEAD.
        """
        t = self._tables
        statements = []
        if status in {InboxStatus.DEAD, None}:
            statements.append(sql.dead_rollbacks(t, group=group, topic=topic, limit=limit))
        if status in {OutboxStatus.FAILED, None} and group is None:
            statements.append(sql.failed_events(t, topic=topic, limit=limit))
        with self._engine.connect() as connection:
            letters = [_letter(row) for s in statements for row in connection.execute(s)]
        letters.sort(key=_settled, reverse=True)
        return letters[:limit]

    def find(self, event_id: UUID) -> Sequence[DeadLetter]:
        """Return the rows of an event in any status: the outbox row first, then by group."""
        t = self._tables
        statements = [sql.written(t, event_id), sql.received(t, event_id)]
        with self._engine.connect() as connection:
            return [_letter(row) for s in statements for row in connection.execute(s)]

    def parked(
        self,
        *,
        limit: int,
        group: str | None = None,
        topics: Sequence[str] | None = None,
        values: bool = True,
    ) -> Sequence[ParkedRecord]:
        """Return up to `limit` parked records that wait, the latest first.

        `topics` are the broker's names of topics. Without `values`, which may be megabytes each,
        the values of the records are None.
        """
        statement = sql.parked_records(
            self._tables, group=group, topics=topics, limit=limit, values=values
        )
        with self._engine.connect() as connection:
            return [_parked(row) for row in connection.execute(statement)]

    def find_parked(
        self, *, group: str, topic: str, partition: int, offset: int, digest: str = ""
    ) -> Sequence[ParkedRecord]:
        """Return the records parked from an offset, the latest first; `digest` selects one."""
        statement = sql.parked_from(
            self._tables,
            group=group,
            topic=topic,
            partition=partition,
            offset=offset,
            digest=digest,
        )
        with self._engine.connect() as connection:
            return [_parked(row) for row in connection.execute(statement)]

    def taken_back(self, letters: Sequence[DeadLetter]) -> set[UUID]:
        """Return the own events of which this database has a rollback, written or received."""
        own = {x.envelope.id: x.envelope.source for x in letters if x.group is None}
        t, d = self._tables, self._dialect
        statements = [
            repair_sql.not_discarded_rollbacks(t, d, sorted(own)),
            repair_sql.received_rollbacks(t, d, sorted(own)),
        ]
        with self._engine.connect() as connection:
            found = [tuple(row) for each in statements for row in connection.execute(each)]
        return {event_id for event_id, source in found if source in {own[event_id], None}}

    def replay(self, letters: Sequence[DeadLetter], *, who: str) -> None:
        """Queue dead letters with all their attempts: all or none, with an audit entry each.

        Raises IllegalTransition, which names the first that is not (or no longer) FAILED or DEAD.
        """
        with self._engine.begin() as connection:
            for letter in letters:
                self._replay(connection, letter)
                self._note(connection, letter, who)

    def _replay(self, connection: Connection, letter: DeadLetter) -> None:
        t, d, group, event_id = self._tables, self._dialect, letter.group, letter.envelope.id
        if group is None:
            status = connection.scalar(sql.outbox_status(t, event_id).with_for_update())
            statement: Any = outbox_sql.replay(t, d, event_id)
        else:
            source = letter.envelope.source
            inbox_status = sql.inbox_status(t, group=group, event_id=event_id, source=source)
            status = connection.scalar(inbox_status.with_for_update())
            statement = inbox_sql.replay(t, d, group=group, event_id=event_id, source=source)
        # The UPDATE has the same condition; this check makes an error that names the status.
        if status != letter.status or not letter.can_be_replayed:
            raise IllegalTransition(f"{letter} is {status or 'gone'}: {_WHAT_CAN_BE}")
        connection.execute(statement).one()

    def _note(self, connection: Connection, letter: DeadLetter, who: str) -> None:
        detail = {
            "from": letter.status,
            "to": REPLAY[letter.status],
            "event_type": letter.envelope.type,
            "source": letter.envelope.source,
            "attempts": letter.attempts,
            "reason": letter.reason,
        }
        connection.execute(
            audit.record(
                self._tables,
                self._dialect,
                who=who,
                action="replay",
                subject=str(letter),
                detail=json.dumps(detail, ensure_ascii=False),
            )
        )


_WHAT_CAN_BE = (
    "only FAILED events of the outbox and DEAD ones of an inbox can be replayed, see "
    "`shieldtx dead list`"
)


def _letter(row: Row[*tuple[Any, ...]]) -> DeadLetter:
    group = row.consumer_group
    return DeadLetter(
        envelope=envelope_of(row),
        group=group,
        status=OutboxStatus(row.status) if group is None else InboxStatus(row.status),
        attempts=row.attempts,
        settled_at=row.settled_at,
        reason=row.last_error or "",
        unconfirmed=row.unconfirmed,
    )


def _settled(letter: DeadLetter) -> datetime:
    return letter.settled_at or datetime.max.replace(tzinfo=UTC)


def _parked(row: Row[*tuple[Any, ...]]) -> ParkedRecord:
    headers = json.loads(row.record_headers)
    return ParkedRecord(
        group=row.consumer_group,
        record=ReceivedRecord(
            topic=row.topic,
            partition=row.record_partition,
            offset=row.record_offset,
            key=row.record_key,
            value=row.record_value,
            headers=tuple(
                (name, None if value is None else base64.b64decode(value))
                for name, value in headers
            ),
        ),
        reason=row.reason,
        parked_at=row.parked_at,
        digest=row.digest,
        discarded_at=row.discarded_at,
    )
