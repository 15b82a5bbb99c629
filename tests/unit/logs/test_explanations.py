"""Database errors name the setting, the place and the remedy, and never a password."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from shieldtx.logs import databases
from shieldtx.logs.databases import Database, name_databases
from shieldtx.logs.explanations import Explanation, explanation_of

CLOSED = "postgresql+psycopg://ann:s3cret@127.0.0.1:1/orders"
NAMED = "SHIELDTX_DATABASE_URL (ann@127.0.0.1:1/orders): "


@pytest.fixture(autouse=True)
def named() -> Iterator[None]:
    was_named = event.contains(Engine, "handle_error", databases._attach)
    name_databases()
    yield
    if not was_named:
        event.remove(Engine, "handle_error", databases._attach)


def explained(url: str, statement: str = "SELECT 1") -> Explanation:
    engine = create_engine(url)
    with pytest.raises(DBAPIError) as caught, engine.connect() as connection:
        connection.execute(text(statement))
    found = explanation_of(caught.value)
    assert found is not None
    assert "s3cret" not in found.line
    return found


def test_unreachable_database_is_named_by_its_setting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", CLOSED)
    found = explained(CLOSED)
    assert found.line.startswith(f"{NAMED}the database cannot be used: connection ")
    assert "Connection refused; Is the server running" in found.line
    assert not found.is_setting


def test_another_database_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", "postgresql+psycopg://ann@127.0.0.1:1/stock")
    line = explained(CLOSED).line
    assert line.startswith("ann@127.0.0.1:1/orders: the database cannot be used: ")


def test_several_servers_are_all_named():
    url = (
        "postgresql+psycopg://ann:s3cret@/orders?host=127.0.0.1:1&host=127.0.0.1:2&password=s3cret"
    )
    assert explained(url).line.startswith("ann@127.0.0.1:1,127.0.0.1:2/orders: ")


def test_address_of_ipv6_is_in_brackets():
    url = "postgresql+psycopg://ann:s3cret@[::1]:1/orders"
    assert explained(url).line.startswith("ann@[::1]:1/orders: ")


def test_file_of_sqlite_is_named_by_its_path():
    found = explained("sqlite:////no/such/folder/x.db")
    assert found.line.startswith("/no/such/folder/x.db: the database cannot be used: ")


@pytest.mark.parametrize("option", ["foo=bar", "sslmode=bar", "target_session_attrs=bar"])
def test_wrong_option_of_the_url_is_a_setting(option: str, monkeypatch: pytest.MonkeyPatch):
    url = f"{CLOSED}?{option}"
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", url)
    found = explained(url)
    assert found.is_setting
    assert found.line.startswith(NAMED)
    assert "invalid " in found.line
    assert "statement" not in found.line


@pytest.mark.parametrize("role", ["ann", None])
def test_missing_permission_names_role_and_grants(role: str | None):
    orig = psycopg.errors.InsufficientPrivilege("permission denied for table shield_outbox")
    error = ProgrammingError("SELECT", {}, orig)
    error.shieldtx_database = Database(  # type: ignore[attr-defined]  # as the engine marks it
        place="h/orders", role=role
    )
    found = explanation_of(error)
    assert found is not None
    assert "permission denied for table shield_outbox" in found.line
    needs = "needs a right: grant it what examples/deploy/grants.sql lists"
    assert f"({role or 'the role of the URL'} {needs})" in found.line
