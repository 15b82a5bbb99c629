"""Services whose outbox and inbox hold what a test puts there."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import create_engine, func, insert, select
from sqlalchemy.schema import CreateSchema

from shieldtx.events import new_event_id
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.store.tables import tables

TOPIC = "orders.placed"


class Service:
    """A service's database, made for one test."""

    def __init__(self, *, name: str, url: str, schema: str | None) -> None:
        self.name = name
        self.url = url
        self.schema = schema
        self.engine = create_engine(url)
        self.tables = tables(schema)
        with self.engine.begin() as connection:
            if schema is not None:
                connection.execute(CreateSchema(schema))
            self.tables.metadata.create_all(connection)

    def close(self) -> None:
        self.engine.dispose()

    def database(self, **changes: Any) -> ServiceDatabase:
        fields = {"name": self.name, "url": self.url, "schema": self.schema}
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
        now = self.now()
        event_id = event_id or new_event_id()
        written = _ago(now, age)
        settled = status in OUTBOX.settled
        row = {
            **_envelope(self.name, event_id, kind),
            "shard": 0,
            "status": status.value,
            "waiting": False,
            "holds_key": False,
            "unconfirmed": False,
            "created_at": written,
            "due_at": written if due_age is None else _ago(now, due_age),
            "settled_at": _ago(now, age if settled_age is None else settled_age)
            if settled
            else None,
        }
        with self.engine.begin() as connection:
            connection.execute(insert(self.tables.outbox).values({**row, **columns}))
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
        now = self.now()
        received = _ago(now, age)
        settled = status in INBOX.settled
        row = {
            **_envelope(source, event_id, kind),
            "consumer_group": group,
            "status": status.value,
            "event_time": received,
            "received_at": received,
            "due_at": received if due_age is None else _ago(now, due_age),
            "settled_at": _ago(now, age if settled_age is None else settled_age)
            if settled
            else None,
        }
        with self.engine.begin() as connection:
            connection.execute(insert(self.tables.inbox).values({**row, **columns}))
        return event_id


def _envelope(source: str, event_id: UUID, kind: TxKind) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "source": source,
        "topic": TOPIC,
        "event_type": TOPIC,
        "tx_kind": kind.value,
        "operation": "INSERT",
        "payload": '{"card": "payload nobody reads"}',
    }


def _ago(now: datetime, minutes: float) -> datetime:
    return now - timedelta(minutes=minutes)
