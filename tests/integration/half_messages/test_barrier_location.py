"""A local transaction is guarded in the database of its barrier, however it is reached."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Engine, MetaData, Table, Text, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from shieldtx import Settings, ShieldTx
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.errors import ConfigurationError, TransactionRefused
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


def _pay_by(pay: Service, engine: Engine, event_type: str = PAID) -> None:
    """Make a guarded local transaction over an engine."""
    with pay.app.half(event_type) as half, engine.begin() as connection:
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


def test_view_of_the_barriers_engine_is_not_queried_for_location(
    pay: Service, ledger: Engine
) -> None:
    statements = _statements_of(ledger)
    _pay_by(pay, ledger.execution_options(isolation_level="SERIALIZABLE"))
    assert not any("to_regclass" in statement for statement in statements)


def test_other_engine_is_queried_once_for_its_location(pay: Service, ledger: Engine) -> None:
    with _engine(ledger) as other:
        statements = _statements_of(other)
        for _ in range(3):
            _pay_by(pay, other)
    assert len([statement for statement in statements if "to_regclass" in statement]) == 1


def _statements_of(engine: Engine) -> list[str]:
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    return found


RIGHTS = {
    "EXECUTE ON FUNCTION pg_control_system()": (
        "has_function_privilege('pg_control_system()', 'EXECUTE')"
    ),
    "EXECUTE ON FUNCTION pg_postmaster_start_time()": (
        "has_function_privilege('pg_postmaster_start_time()', 'EXECUTE')"
    ),
    "SELECT ON pg_catalog.pg_database": "has_table_privilege('pg_catalog.pg_database', 'SELECT')",
}


@pytest.mark.parametrize("is_the_barriers", [False, True])
@pytest.mark.parametrize("revoked", [*([right] for right in RIGHTS), [*RIGHTS]])
def test_role_without_rights_to_query_its_location_is_guarded(
    pay: Service, ledger: Engine, revoked: list[str], is_the_barriers: bool
) -> None:
    with ledger.begin() as connection:
        for right in revoked:
            connection.execute(text(f"REVOKE {right} FROM PUBLIC"))
        connection.execute(text("GRANT ALL ON ALL TABLES IN SCHEMA public TO pg_monitor"))
    with _engine(ledger, connect_args={"options": "-c role=pg_monitor"}) as other:
        with other.connect() as connection:
            for right in revoked:
                assert connection.scalar(text(f"SELECT {RIGHTS[right]}")) is False
        if is_the_barriers:
            pay.app.declare("tenants.paid")
            pay.app.barrier("tenants.paid", engine=other)
            _pay_by(pay, ledger, "tenants.paid")
        else:
            _pay_by(pay, other)
    assert _is_sent_once(pay, ledger)


def test_connection_to_other_database_is_refused_without_secrets(
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


def test_barrier_of_a_named_schema_is_found_with_any_search_path(
    pay: Service, ledger: Engine
) -> None:
    _add_tenant(ledger)
    pay.app.declare("tenants.paid")
    pay.app.barrier("tenants.paid", engine=ledger, schema="public")
    for _ in range(2):
        with pay.app.half("tenants.paid") as half, ledger.begin() as connection:
            connection.execute(text("SET LOCAL search_path TO tenant, public"))
            half.guard(connection)
    assert pay.outbox() == {"INIT": 2}


def test_barrier_engine_redirected_to_another_schema_is_refused(
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


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that PostgreSQL may enter as its account: root's tmp_path of pytest is closed to
    it.
    """
    with tempfile.TemporaryDirectory(prefix="shieldtx-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_copied_server_is_refused(
    make_service: Callable[..., Service], open_directory: Path
) -> None:
    original, copied = open_directory / "original", open_directory / "copied"
    with EmbeddedPostgres(original, fsync=False) as server:
        server.create_database("ledger")
        with closing(ShieldTx(Settings(source="pay", database_url=server.url("ledger")))) as app:
            app.schema.upgrade()
    subprocess.run(["cp", "--archive", str(original), str(copied)], check=True)
    with (
        EmbeddedPostgres(original, fsync=False) as server,
        EmbeddedPostgres(copied, fsync=False) as copy,
    ):
        engine, other = create_engine(server.url("ledger")), create_engine(copy.url("ledger"))
        pay = make_service("pay")
        pay.app.declare(PAID)
        pay.app.barrier(PAID, engine=engine)
        make_topics(pay)
        with pytest.raises(TransactionRefused, match="another table"):
            _guard_by(pay, other)
        _guard_by(pay, engine)
        engine.dispose()
        other.dispose()
    assert pay.outbox() == {"HALF": 1, "INIT": 1}


def _guard_by(pay: Service, engine: Engine) -> None:
    with pay.app.half(PAID) as half, engine.begin() as connection:
        half.guard(connection)


@pytest.mark.parametrize(
    ("own", "callers", "is_refused"), [((1, 1), 2, True), ((1, 2), 2, False), ((1, 1), 1, False)]
)
def test_server_is_queried_again_before_an_engine_is_refused(
    pay: Service,
    ledger: Engine,
    monkeypatch: pytest.MonkeyPatch,
    own: tuple[int, int],
    callers: int,
    is_refused: bool,
) -> None:
    """The server may have been restarted since the first query."""
    dialect, pool = dialect_of(ledger.dialect), ledger.pool
    identity, numbers = dialect.table_identity, iter(own)

    def of_a_server(connection: Connection, table: Table) -> tuple[object, ...]:
        number = next(numbers) if connection.engine.pool is pool else callers
        return (*identity(connection, table)[:-1], number)

    monkeypatch.setattr(type(dialect), "table_identity", lambda _, *args: of_a_server(*args))
    with _engine(ledger) as other:
        if is_refused:
            with pytest.raises(TransactionRefused, match="another table"):
                _pay_by(pay, other)
        else:
            _pay_by(pay, other)
    assert _is_sent_once(pay, ledger) is not is_refused


def test_barrier_engine_with_one_connection_does_not_block(pay: Service, ledger: Engine) -> None:
    _add_tenant(ledger)
    with _engine(ledger, pool_size=1, max_overflow=0) as only:
        of_others = only.execution_options(schema_translate_map={"elsewhere": "tenant"})
        of_tenants = only.execution_options(schema_translate_map={None: "tenant"})
        pay.app.declare("tenants.paid")
        pay.app.declare("others.paid")
        pay.app.barrier("tenants.paid", engine=of_tenants)
        pay.app.barrier("others.paid", engine=of_others)
        with (
            pytest.raises(TransactionRefused, match="another table"),
            pay.app.half("tenants.paid") as half,
            only.begin() as connection,
        ):
            half.guard(connection)
        with pay.app.half("others.paid") as half, of_others.begin() as connection:
            half.guard(connection)
    assert pay.outbox() == {"HALF": 1, "INIT": 1}


@pytest.mark.parametrize("given", ["AsyncEngine", "sync_engine", "view"])
def test_asynchronous_engine_is_refused_at_its_declaration(
    pay: Service, ledger: Engine, given: str
) -> None:
    asynchronous = create_async_engine(ledger.url)
    engines: dict[str, Any] = {
        "AsyncEngine": asynchronous,
        "sync_engine": asynchronous.sync_engine,
        "view": asynchronous.execution_options(schema_translate_map={}).sync_engine,
    }
    pay.app.declare("tenants.paid")
    with pytest.raises(ConfigurationError, match=r"sqlalchemy\.create_engine\(\)"):
        pay.app.barrier("tenants.paid", engine=engines[given])
    # The refused barrier is not declared.
    pay.app.barrier("tenants.paid", engine=ledger)


def test_another_kind_of_database_is_refused(pay: Service, tmp_path: Any) -> None:
    other = create_engine(migrated_sqlite(tmp_path / "other.db", shards=4))
    with pytest.raises(TransactionRefused, match="leads to sqlite"):
        _pay_by(pay, other)
    other.dispose()


def test_session_with_several_databases_is_guarded_by_connection(
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
