"""A local transaction is guarded in the database in which checks look for it, however reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Column, Engine, MetaData, Table, Text, create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from shieldtx.errors import TransactionRefused
from shieldtx.store.dialects import dialect_of
from tests.support.migrated_databases import migrated_sqlite
from tests.support.service import Service, make_topics

PAID = "orders.paid"
ENTRIES = Table("entries", MetaData(), Column("what", Text))


@pytest.fixture
def pay(make_service: Callable[..., Service], ledger: Engine) -> Service:
    service = make_service("pay", half_check_timeout=5.0, barrier_patience=0.3)
    service.app.declare(PAID)
    service.app.barrier(PAID, engine=ledger)
    make_topics(service)
    return service


def _pay_by(pay: Service, engine: Engine) -> None:
    """Make a guarded local transaction over an engine."""
    with pay.app.half(PAID) as half, engine.begin() as connection:
        half.guard(connection)
        connection.execute(ENTRIES.insert().values(what="paid"))


def _is_sent_once(pay: Service, ledger: Engine) -> bool:
    with ledger.connect() as connection:
        booked = list(connection.scalars(ENTRIES.select()))
    return booked == ["paid"] and pay.outbox() == {"INIT": 1}


@contextmanager
def _engine(ledger: Engine, **arguments: Any) -> Iterator[Engine]:
    engine = create_engine(ledger.url, **arguments)
    try:
        yield engine
    finally:
        engine.dispose()


def test_another_engine_of_the_same_database_is_guarded(pay: Service, ledger: Engine) -> None:
    with _engine(ledger, poolclass=NullPool) as other:
        _pay_by(pay, other)
    assert _is_sent_once(pay, ledger)


def test_a_view_of_the_barriers_engine_is_not_asked_where_it_leads(
    pay: Service, ledger: Engine
) -> None:
    statements = _statements_of(ledger)
    _pay_by(pay, ledger.execution_options(isolation_level="SERIALIZABLE"))
    assert not any("pg_database" in statement for statement in statements)


def test_another_engine_is_asked_once_where_it_leads(pay: Service, ledger: Engine) -> None:
    with _engine(ledger) as other:
        statements = _statements_of(other)
        for _ in range(3):
            _pay_by(pay, other)
    assert len([statement for statement in statements if "pg_database" in statement]) == 1


def _statements_of(engine: Engine) -> list[str]:
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    return found


def test_a_role_that_may_not_ask_for_the_servers_number_is_guarded(
    pay: Service, ledger: Engine
) -> None:
    with ledger.begin() as connection:
        connection.execute(text("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"))
        connection.execute(text("GRANT ALL ON ALL TABLES IN SCHEMA public TO pg_monitor"))
    with _engine(ledger, connect_args={"options": "-c role=pg_monitor"}) as other:
        with other.connect() as connection:
            may = "SELECT has_function_privilege('pg_control_system()', 'EXECUTE')"
            assert connection.scalar(text(may)) is False
        _pay_by(pay, other)
    assert _is_sent_once(pay, ledger)


def test_a_connection_to_another_database_is_refused_and_no_secret_is_shown(
    pay: Service, ledger: Engine
) -> None:
    with pytest.raises(TransactionRefused, match="leads to postgresql") as refused:
        _pay_by(pay, pay.engine)
    for engine in (ledger, pay.engine):
        assert str(engine.url.database) in str(refused.value)
        assert engine.url.username is not None
        assert f"{engine.url.username}:" not in str(refused.value)


def _add_tenant(ledger: Engine) -> None:
    with ledger.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
        connection.execute(text("CREATE TABLE tenant.shield_barrier (LIKE public.shield_barrier)"))


def test_a_table_of_the_same_name_in_another_schema_is_refused(
    pay: Service, ledger: Engine
) -> None:
    _add_tenant(ledger)
    with (
        _engine(ledger, connect_args={"options": "-c search_path=tenant,public"}) as other,
        pytest.raises(TransactionRefused, match="another table"),
    ):
        _pay_by(pay, other)


def test_a_barrier_whose_engine_is_redirected_to_another_schema_is_refused(
    pay: Service, ledger: Engine
) -> None:
    _add_tenant(ledger)
    tenant = ledger.execution_options(schema_translate_map={None: "tenant"})
    pay.app.declare("tenants.paid")
    pay.app.barrier("tenants.paid", engine=tenant)
    with (
        pytest.raises(TransactionRefused, match="another table"),
        pay.app.half("tenants.paid") as half,
        ledger.begin() as connection,
    ):
        half.guard(connection)


def test_a_server_of_another_number_is_refused(
    pay: Service, ledger: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = dialect_of(ledger.dialect)
    identity, numbers = dialect.table_identity, iter((1, 2))

    def of_another_server(connection: Any, table: Table) -> tuple[object, ...]:
        return (*identity(connection, table)[:2], next(numbers))

    monkeypatch.setattr(type(dialect), "table_identity", lambda _, *args: of_another_server(*args))
    with _engine(ledger) as other, pytest.raises(TransactionRefused, match="another table"):
        _pay_by(pay, other)


def test_another_kind_of_database_is_refused(pay: Service, tmp_path: Any) -> None:
    other = create_engine(migrated_sqlite(tmp_path / "other.db", shards=4))
    with pytest.raises(TransactionRefused, match="leads to sqlite"):
        _pay_by(pay, other)
    other.dispose()


def test_of_a_session_with_several_databases_the_barriers_own_is_guarded(
    pay: Service, ledger: Engine
) -> None:
    def several() -> Session:
        return Session(pay.engine, binds={ENTRIES: ledger})

    with (
        pytest.raises(TransactionRefused, match=r"session\.connection\(bind_arguments"),
        pay.app.half(PAID) as half,
        several() as session,
        session.begin(),
    ):
        half.guard(session)
    with pay.app.half(PAID) as half, several() as session, session.begin():
        half.guard(session.connection(bind_arguments={"clause": ENTRIES}))
        session.execute(ENTRIES.insert().values(what="paid"))
    assert pay.outbox() == {"HALF": 1, "INIT": 1}
