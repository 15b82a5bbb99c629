"""Options of a service's own database URL reach the database, in addition to shieldtx's."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shieldtx import Settings, ShieldTx
from tests.support.postgres_settings import IDLE_LIMIT, setting

SHOWN = (IDLE_LIMIT, "application_name", "work_mem")


def shown(url: str) -> dict[str, str]:
    """Return the server's settings in a connection of an application with this URL."""
    app = ShieldTx(Settings(source="shop", database_url=url, relay_lease=90, relay_wakeup=False))
    try:
        with app.engine.connect() as connection:
            return {name: setting(connection, name) for name in SHOWN}
    finally:
        app.close()


def test_options_of_a_url_are_kept_with_the_idle_limit(database_url: str) -> None:
    found = shown(f"{database_url}?options=-c%20work_mem%3D7MB")
    assert found["work_mem"] == "7MB"
    assert found[IDLE_LIMIT] == "90s"


def test_options_given_twice_in_a_url_are_all_kept(database_url: str) -> None:
    found = shown(f"{database_url}?options=-cwork_mem%3D7MB&options=-capplication_name%3Dshop")
    assert (found["work_mem"], found["application_name"]) == ("7MB", "shop")
    assert found[IDLE_LIMIT] == "90s"


def test_handler_declared_late_may_idle_for_its_lease(database_url: str) -> None:
    app = ShieldTx(Settings(source="shop", database_url=database_url, relay_wakeup=False))
    try:
        engine = app.engine
        app.consumer("stock").handles("orders.placed", lease=timedelta(minutes=10))(
            lambda session, event: None
        )
        with engine.connect() as connection:
            limit = setting(connection, IDLE_LIMIT)
        assert limit == "10min"
    finally:
        app.close()


def test_options_of_the_environment_apply_if_the_url_has_none(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=9MB")
    found = shown(database_url)
    assert found["work_mem"] == "9MB"
    assert found[IDLE_LIMIT] == "90s"
    assert shown(f"{database_url}?options=-capplication_name%3Dshop")["work_mem"] != "9MB"


def test_url_may_set_the_idle_limit_itself(database_url: str) -> None:
    limit = "?options=-c%20idle_in_transaction_session_timeout%3D7s"
    assert shown(f"{database_url}{limit}")[IDLE_LIMIT] == "7s"
