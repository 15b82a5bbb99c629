from __future__ import annotations

import re
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, func, insert, text

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.errors import SchemaMismatch
from shieldtx.store.schema import Schema
from shieldtx.store.statements import sequences
from shieldtx.store.statements.sequences import highest
from shieldtx.store.tables import tables
from tests.support.rows_in_any_state import inbox_row, outbox_row
from tests.support.rows_read import rows_read


@pytest.mark.parametrize("schema", [None, "order"])
@pytest.mark.parametrize("settled", [False, True])
def test_sequence_below_its_rows_is_refused_with_the_remedy(
    engine: Engine, an_event: dict[str, Any], schema: str | None, settled: bool
) -> None:
    checked = Schema(engine, schema=schema)
    checked.upgrade()
    checked.check_sequences()
    of_schema = f'"{schema}".' if schema else ""
    table = f"{of_schema}shield_outbox"
    with engine.begin() as connection:
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'seq'), 40)"))
        connection.execute(insert(tables(schema).outbox).values(an_event))
        if settled:
            connection.execute(text(f"UPDATE {table} SET settled_at = now()"))
    checked.check_sequences()

    # A switch-over to a logical replica does this: it keeps the rows and restarts the sequence.
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} ALTER COLUMN seq RESTART WITH 1"))
    with pytest.raises(SchemaMismatch, match=r"at 1, but there are rows up to 41") as caught:
        checked.check_sequences()

    [remedy] = re.findall(r"`(SELECT setval.*?)`", str(caught.value))
    with engine.begin() as connection:
        connection.execute(text(remedy))
    checked.check_sequences()


def test_sequences_of_new_tables_are_accepted(engine: Engine) -> None:
    Schema(engine).upgrade()

    Schema(engine).check_sequences()


def assert_found(engine: Engine, table: str, highest_seq: int) -> None:
    """Assert the highest number that the check finds: a sequence that reuses it is refused."""
    check = Schema(engine).check_sequences
    check()
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} ALTER COLUMN seq RESTART {highest_seq}"))
    with pytest.raises(SchemaMismatch, match=f"there are rows up to {highest_seq}: "):
        check()


@pytest.mark.parametrize("settled_last", [False, True])
@pytest.mark.parametrize("open_as", [{}, {"waiting": True}, {"holds_key": True}])
def test_highest_number_is_of_an_old_open_or_a_latest_event(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, open_as: dict[str, Any], settled_last: bool
) -> None:
    monkeypatch.setattr(sequences, "_LATEST", 2)
    old, latest = [UUID(int=1), UUID(int=2)], [UUID(int=3), UUID(int=4)]
    open_rows = [outbox_row(OutboxStatus.INIT, event_id=each, **open_as) for each in old]
    settled = [outbox_row(OutboxStatus.PROCESSED, event_id=each) for each in latest]
    Schema(engine).upgrade()
    with engine.begin() as connection:
        for row in open_rows + settled if settled_last else settled + open_rows:
            connection.execute(insert(tables().outbox).values(row))
    assert_found(engine, "shield_outbox", len(open_rows) + len(settled))


def test_highest_inbox_number_may_be_of_an_old_open_event(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "_LATEST", 1)
    rows = [
        inbox_row(InboxStatus.PROCESSED, event_id=UUID(int=9)),
        inbox_row(InboxStatus.INIT, event_id=UUID(int=1)),
        inbox_row(InboxStatus.INIT, event_id=UUID(int=2)),
    ]
    Schema(engine).upgrade()
    with engine.begin() as connection:
        for row in rows:
            connection.execute(insert(tables().inbox).values(row))
    assert_found(engine, "shield_inbox", len(rows))


def test_highest_number_needs_no_index_on_settled_rows(
    engine: Engine, an_event: dict[str, Any]
) -> None:
    Schema(engine).upgrade()
    outbox = tables().outbox
    settled = 20_000
    names = [column.name for column in outbox.c if column.name not in ("event_id", "seq")]
    copied = ", ".join(names)
    with engine.begin() as connection:
        # PostgreSQL 14 and 15 do not have this index.
        connection.execute(text("DROP INDEX IF EXISTS shield_outbox_settled_idx"))
        connection.execute(outbox.insert().values(an_event | {"settled_at": func.now()}))
        connection.execute(
            text(
                f"INSERT INTO shield_outbox (event_id, {copied}) "
                f"SELECT gen_random_uuid(), {copied} "
                f"FROM shield_outbox, generate_series(2, {settled})"
            )
        )
        is_open = {"event_id": uuid4(), "waiting": True}
        connection.execute(outbox.insert().values(an_event | is_open))
        connection.execute(text("ANALYZE shield_outbox"))
        statement = highest(outbox)
    with rows_read(engine) as read:
        Schema(engine).check_sequences()
    assert max(each.rows for each in read) < settled / 10
    with engine.connect() as connection:
        assert connection.scalar(statement) == settled + 1
        compiled = str(statement.compile(engine, compile_kwargs={"literal_binds": True}))
        plan = "\n".join(connection.scalars(text(f"EXPLAIN {compiled}")))
    assert "Seq Scan" not in plan, plan
