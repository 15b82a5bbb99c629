"""Services whose outbox and inbox hold the rows that a test plants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import create_engine, func, insert, select

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.expectations import Others
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.store.tables import tables

TOPIC = "orders.placed"
SHARDS = 8


class Service:
    """A service's migrated database."""

    def __init__(self, *, name: str, url: str, schema: str | None) -> None:
        self.name = name
        self.url = url
        self.schema = schema
        self.engine = create_engine(url)
        self.tables = tables(schema)

    def close(self) -> None:
        self.engine.dispose()

    def database(self, **changes: Any) -> ServiceDatabase:
        fields = {"name": self.name, "url": self.url, "schema": self.schema}
        if isinstance(names := changes.get("others"), tuple):
            changes |= {"others": Others.named(*names)}
        return ServiceDatabase(**{**fields, **changes})

    def now(self) -> datetime:
        with self.engine.connect() as connection:
            return connection.scalars(select(func.now())).one()

    def write(
        self,
        status: OutboxStatus = OutboxStatus.PROCESSED,
        *,
        event_id: UUID | None = None,
        age: float = 60,
        settled_age: float | None = None,
        due_age: float | None = None,
        kind: TxKind = TxKind.COMMIT,
        **columns: Any,
    ) -> UUID:
        """Put an event into the outbox; ages are in minutes."""
        event_id = event_id or new_event_id()
        ages = {"age": age, "settled_age": settled_age, "due_age": due_age}
        row = outbox_row(self.name, event_id, status, now=self.now(), kind=kind, **ages)
        self.insert(outbox=[{**row, **columns}])
        return event_id

    def receive(
        self,
        event_id: UUID,
        status: InboxStatus = InboxStatus.PROCESSED,
        *,
        group: str,
        source: str,
        age: float = 60,
        settled_age: float | None = None,
        due_age: float | None = None,
        kind: TxKind = TxKind.COMMIT,
        **columns: Any,
    ) -> UUID:
        """Put an event into the inbox of a group; ages are in minutes."""
        ages = {"age": age, "settled_age": settled_age, "due_age": due_age}
        row = inbox_row(source, event_id, status, group=group, now=self.now(), kind=kind, **ages)
        self.insert(inbox=[{**row, **columns}])
        return event_id

    def insert(
        self, *, outbox: Sequence[Mapping[str, Any]] = (), inbox: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Put rows into the tables, in this order and in one transaction."""
        inbox = [{"awaits_operator": row["status"] == InboxStatus.DEAD, **row} for row in inbox]
        with self.engine.begin() as connection:
            for table, rows in ((self.tables.outbox, outbox), (self.tables.inbox, inbox)):
                names = list(dict.fromkeys(name for row in rows for name in row))
                if rows:
                    filled = [{name: row.get(name) for name in names} for row in rows]
                    connection.execute(insert(table), filled)


def outbox_row(
    source: str,
    event_id: UUID,
    status: OutboxStatus,
    *,
    now: datetime,
    age: float,
    settled_age: float | None = None,
    due_age: float | None = None,
    kind: TxKind = TxKind.COMMIT,
) -> dict[str, Any]:
    """Make a row of an outbox; ages are in minutes."""
    written = ago(now, age)
    settled = ago(now, age if settled_age is None else settled_age)
    return {
        **_envelope(source, event_id, kind),
        "shard": 0,
        "status": status.value,
        "attempts": 0,
        "waiting": False,
        "holds_key": False,
        "unconfirmed": False,
        "created_at": written,
        "due_at": written if due_age is None else ago(now, due_age),
        "settled_at": settled if status in OUTBOX.settled else None,
    }


def inbox_row(
    source: str,
    event_id: UUID,
    status: InboxStatus,
    *,
    group: str,
    now: datetime,
    age: float,
    settled_age: float | None = None,
    due_age: float | None = None,
    kind: TxKind = TxKind.COMMIT,
) -> dict[str, Any]:
    """Make a row of an inbox; ages are in minutes."""
    received = ago(now, age)
    settled = ago(now, age if settled_age is None else settled_age)
    return {
        **_envelope(source, event_id, kind),
        "consumer_group": group,
        "status": status.value,
        "attempts": 0,
        "event_time": received,
        "received_at": received,
        "due_at": received if due_age is None else ago(now, due_age),
        "settled_at": settled if status in INBOX.settled else None,
    }


def _envelope(source: str, event_id: UUID, kind: TxKind) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "source": source,
        "topic": TOPIC,
        "event_type": TOPIC,
        "tx_kind": kind.value,
        "operation": "INSERT",
        "payload": '{"card": "payload out of sight"}',
    }


def ago(now: datetime, minutes: float) -> datetime:
    return now - timedelta(minutes=minutes)
