"""Rows in any state, and tables that are downgraded to an earlier revision and upgraded again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from alembic.runtime.migration import RevisionStep
from sqlalchemy import Connection, Engine, create_engine, delete, insert, select

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.errors import SchemaMismatch
from shieldtx.store.migrations import Migrations
from shieldtx.store.schema import Schema
from shieldtx.store.tables import tables
from tests.support.migrated_databases import MigratedDatabases
from tests.support.revisions import EARLIER
from tests.support.rows_in_any_state import inbox_row, outbox_row

HALF_MESSAGES = "0004"
SCHEMA = "urn:shieldtx:orders.placed:2"
FOR_A_PERSON = {OutboxStatus.FAILED, OutboxStatus.UNRESOLVED, InboxStatus.DEAD}
KEPT_WHOLE = {*OUTBOX.states, *INBOX.states}.difference(OUTBOX.settled, INBOX.settled)
"""States whose rows must survive unchanged; of settled rows only the columns ENDED are needed."""
ENDED = ("event_id", "status", "settled_at", "payload", "key", "biz_key")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Found = Mapping[tuple[UUID, str], Mapping[str, Any]]


@pytest.fixture(scope="module")
def engine(databases: MigratedDatabases) -> Iterator[Engine]:
    with databases.database(shards=1) as url:
        made = create_engine(url)
        yield made
        made.dispose()


def _rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows in every state, and open rows in every combination of flags."""
    for status in OUTBOX.states:
        yield "outbox", outbox_row(status)
    for place in (
        {"waiting": True, "holds_key": True, "attempts": 1, "last_error": "later"},
        {"waiting": False, "holds_key": True},
        {"waiting": True, "holds_key": False},
        {"unconfirmed": True},
        {"tx_kind": TxKind.ROLLBACK.value},
        {"dataschema": SCHEMA},
    ):
        yield "outbox", outbox_row(OutboxStatus.INIT, **place)
    yield "outbox", outbox_row(OutboxStatus.FAILED, dataschema=SCHEMA)
    for state in INBOX.states:
        yield "inbox", inbox_row(state)
    yield "inbox", inbox_row(InboxStatus.PROCESSING, together=True)
    yield "inbox", inbox_row(InboxStatus.INIT, attempts=1, last_error="again")
    yield "inbox", inbox_row(InboxStatus.INIT, dataschema=SCHEMA)
    yield "inbox", inbox_row(InboxStatus.DEAD, dataschema=SCHEMA)
    of_event = {"tx_kind": TxKind.COMMIT.value, "causation_id": None, "causation_source": None}
    yield "inbox", inbox_row(InboxStatus.DEAD, **of_event)


def _read(connection: Connection) -> Found:
    """Return the columns that must survive, by event and table."""
    t = tables()
    return {
        (row["event_id"], name): _to_be_kept(row)
        for name, table in (("outbox", t.outbox), ("inbox", t.inbox))
        for row in map(dict, connection.execute(select(table)).mappings())
    }


def _to_be_kept(row: dict[str, Any]) -> dict[str, Any]:
    if row["status"] not in {*KEPT_WHOLE, *FOR_A_PERSON}:
        return {column: row[column] for column in ENDED}
    if "holds_key" in row:
        # A blocked row returns to the queue, until a relay blocks it again.
        row["holds_key"] = row["holds_key"] and row["waiting"]
    if "awaits_operator" in row and row["tx_kind"] == TxKind.ROLLBACK:
        # The index has all rollbacks that ended in an error, whatever this column contains.
        del row["awaits_operator"]
    return row


def _there_and_back(engine: Engine, revision: str) -> list[str]:
    """Downgrade and upgrade, without the rows that forbid the downgrade; describe the losses."""
    schema, t = Schema(engine, shards=1), tables()
    with engine.begin() as connection:
        for table in (t.outbox, t.inbox):
            connection.execute(delete(table))
        for name, row in _rows():
            connection.execute(insert(getattr(t, name)).values(row))
    while True:
        with engine.connect() as connection:
            before = _read(connection)
        try:
            schema.downgrade(revision)
        except SchemaMismatch as error:
            _remove(engine, error)
        else:
            break
    schema.upgrade()
    with engine.connect() as connection:
        after = _read(connection)
    return [
        f"{revision}: {name} {row['status']} was {row}, is {after.get((event, name))}"
        for (event, name), row in before.items()
        if after.get((event, name)) != row
    ]


def _remove(engine: Engine, refusal: SchemaMismatch) -> None:
    """Remove the rows that a refusal names, as an operator does who settles them first."""
    ids = [UUID(each) for each in _ID.findall(str(refusal))]
    assert ids, refusal
    with engine.begin() as connection:
        for table in (tables().outbox, tables().inbox):
            connection.execute(delete(table).where(table.c.event_id.in_(ids)))


@pytest.mark.parametrize("revision", EARLIER)
def test_downgrade_is_refused_or_keeps_all_rows(engine: Engine, revision: str) -> None:
    assert not _there_and_back(engine, revision)


@pytest.mark.selftest
def test_rows_detect_a_downgrade_that_loses_half_messages(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Migrations.refuse_losses

    def refuse_losses(self: Migrations, steps: Iterable[RevisionStep]) -> None:
        sound(self, [step for step in steps if step.revision.revision != HALF_MESSAGES])

    monkeypatch.setattr(Migrations, "refuse_losses", refuse_losses)
    lost = _there_and_back(engine, EARLIER[-1])
    assert any("outbox HALF" in each for each in lost)
