"""Dead letters: FAILED events, DEAD rows of the inbox and parked records, and their replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Engine

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.errors import IllegalTransition
from shieldtx.store.business_keys import received_of_business_key
from shieldtx.store.dead_letter_rows import (
    REPLAY,
    DeadLetter,
    ParkedRecord,
    Status,
    letter_of,
    parked_of,
)
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import audit
from shieldtx.store.statements import dead_letters as sql
from shieldtx.store.statements import inbox as inbox_sql
from shieldtx.store.statements import outbox as outbox_sql
from shieldtx.store.statements import repair as repair_sql
from shieldtx.store.statements.row_filters import RowFilter
from shieldtx.store.tables import Tables

ANY_ROW: Final = RowFilter()


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterReplay:
    """The result of the replay of one dead letter."""

    letter: DeadLetter
    done: bool
    status: str | None = None
    """The present status of a letter that was not replayed; None if the row is gone."""


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
        rows: RowFilter = ANY_ROW,
        oldest: bool = False,
    ) -> Sequence[DeadLetter]:
        """Return up to `limit` dead letters without payloads, the latest first, or the oldest.

        `topic` is a logical topic. With a `group`, only dead letters of its inbox. The `status` is
        FAILED, DEAD or UNRESOLVED; None: FAILED and DEAD, which can be replayed.
        """
        t, d = self._tables, self._dialect
        same: dict[str, Any] = {"topic": topic, "rows": rows, "limit": limit, "oldest": oldest}
        statements = []
        if status in {InboxStatus.DEAD, None}:
            statements.append(sql.inbox_letters(t, d, group=group, **same))
        if status is not InboxStatus.DEAD and group is None:
            of_outbox = OutboxStatus(status or OutboxStatus.FAILED)
            statements.append(sql.outbox_letters(t, d, status=of_outbox, **same))
        with self._engine.connect() as connection:
            letters = [letter_of(row) for s in statements for row in connection.execute(s)]
        letters.sort(key=settled, reverse=not oldest)
        return letters[:limit]

    def given_up(
        self,
        *,
        limit: int,
        group: str | None = None,
        topic: str | None = None,
        rows: RowFilter = ANY_ROW,
    ) -> Sequence[DeadLetter]:
        """Return up to `limit` events that groups have given up (MAX_RECONSUMED), latest first.

        They need no operator: the rollback event that takes each back was written with its state.
        """
        t, d, ids = self._tables, self._dialect, None
        with self._engine.connect() as connection:
            if rows.biz_key is not None:
                # The list of all given-up events may be long, and an index has the business key.
                ids = received_of_business_key(
                    connection, t, biz_key=rows.biz_key, event_type=rows.event_type
                )
            statement = sql.given_up_events(
                t, d, group=group, topic=topic, rows=rows, ids=ids, limit=limit
            )
            return [letter_of(row) for row in connection.execute(statement)]

    def find(self, event_id: UUID) -> Sequence[DeadLetter]:
        """Return the rows of an event in any status: the outbox row first, then by group."""
        t = self._tables
        statements = [sql.written(t, event_id), sql.received(t, event_id)]
        with self._engine.connect() as connection:
            return [letter_of(row) for s in statements for row in connection.execute(s)]

    def parked(
        self,
        *,
        limit: int,
        group: str | None = None,
        topics: Sequence[str] | None = None,
        values: bool = True,
        rows: RowFilter = ANY_ROW,
        oldest: bool = False,
    ) -> Sequence[ParkedRecord]:
        """Return up to `limit` parked records that wait, the latest first, or the oldest.

        `topics` are the broker's names of topics. Without `values`, which may be megabytes each,
        the values of the records are None.
        """
        statement = sql.parked_records(
            self._tables,
            self._dialect,
            group=group,
            topics=topics,
            rows=rows,
            limit=limit,
            values=values,
            oldest=oldest,
        )
        with self._engine.connect() as connection:
            return [parked_of(row) for row in connection.execute(statement)]

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
            return [parked_of(row) for row in connection.execute(statement)]

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

    def replay_waiting(self, letters: Sequence[DeadLetter], *, who: str) -> Sequence[LetterReplay]:
        """Queue the dead letters that still wait, in one transaction; leave the others."""
        # In a fixed order, so that two operators never wait for each other.
        in_order = sorted(letters, key=str)
        with self._engine.begin() as connection:
            return [self._replay_if_waiting(connection, letter, who) for letter in in_order]

    def _replay_if_waiting(
        self, connection: Connection, letter: DeadLetter, who: str
    ) -> LetterReplay:
        statement, status = self._statements(letter)
        if connection.execute(statement).one_or_none() is None:
            return LetterReplay(letter=letter, done=False, status=connection.scalar(status))
        self._note(connection, letter, who)
        return LetterReplay(letter=letter, done=True)

    def _statements(self, letter: DeadLetter) -> tuple[Any, Any]:
        """Return the UPDATE of a letter, and the SELECT of its status."""
        t, d, group, event_id = self._tables, self._dialect, letter.group, letter.envelope.id
        if group is None:
            return outbox_sql.replay(t, d, event_id), sql.outbox_status(t, event_id)
        row: dict[str, Any] = {
            "group": group,
            "event_id": event_id,
            "source": letter.envelope.source,
        }
        return inbox_sql.replay(t, d, **row), sql.inbox_status(t, **row)

    def _replay(self, connection: Connection, letter: DeadLetter) -> None:
        statement, current = self._statements(letter)
        status = connection.scalar(current.with_for_update())
        # The UPDATE has the same condition; this check makes an error that names the status.
        if status != letter.status or not letter.can_be_replayed:
            raise IllegalTransition(f"{letter} is {status or 'gone'}: {why_not_replayed(status)}")
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


_INSTEAD: Final = {
    InboxStatus.MAX_RECONSUMED.value: (
        "its group has given it up, and its rollback event takes it back upstream, see `shieldtx "
        "trace`. Repair the cause, and repeat the business call, which writes a new event"
    ),
    OutboxStatus.UNRESOLVED.value: (
        "the outcome of its local transaction is unknown. Find it out, then use `shieldtx half "
        "commit` or `shieldtx half rollback`"
    ),
}


def why_not_replayed(status: str | None) -> str:
    """Return why an event of a state cannot be replayed, and what to do instead."""
    only = (
        "only FAILED events of the outbox and DEAD ones of an inbox can be replayed, see "
        "`shieldtx dead list`"
    )
    instead = _INSTEAD.get(status or "")
    return f"{only}; {instead}" if instead else only


def settled(letter: DeadLetter) -> datetime:
    """Return when a dead letter was settled: a key for sorting."""
    return letter.settled_at or datetime.max.replace(tzinfo=UTC)
