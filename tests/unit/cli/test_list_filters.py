"""The filters and the limit of `dead list`, `half list` and `delayed list`, on SQLite."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import insert

from shieldtx import ConfigurationError, Settings, ShieldTx
from shieldtx.cli.filters import check_event_type
from tests.support.shop_commands import Run, runner_on
from tests.support.write_side_shop import Shop


@pytest.fixture
def run(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner_on(shop, tmp_path, monkeypatch)


def park(shop: Shop, *, offset: int = 0, group: str = "old", topic: str = "t.paid.commit") -> None:
    with shop.engine.begin() as connection:
        connection.execute(
            insert(shop.tables.parked).values(
                consumer_group=group,
                topic=topic,
                record_partition=0,
                record_offset=offset,
                digest=f"{offset:08x}",
                record_headers="[]",
                reason="not an event",
                parked_at=datetime.now(UTC),
            )
        )


@pytest.mark.parametrize("topic", ["paid", "t.paid.commit", "t.paid.rollback"])
def test_topic_filter_takes_the_logical_and_the_kafka_name(shop: Shop, run: Run, topic: str):
    park(shop)

    result = run("dead", "list", "--topic", topic, "--json", SHIELDTX_TOPIC_PREFIX="t.")

    assert [row["topic"] for row in json.loads(result.stdout)] == ["t.paid.commit"]


@pytest.mark.parametrize(
    ("words", "declared"),
    [
        (("dead", "list", "--group", "nosuch"), "stock"),
        (("dead", "list", "--topic", "nosuch"), "orders.placed"),
        (("dead", "list", "--type", "nosuch"), "orders.placed"),
        (("dead", "discard", "--status", "DEAD", "--reason", "x", "--group", "nosuch"), "stock"),
        (("half", "list", "--topic", "nosuch"), "orders.placed"),
        (("delayed", "list", "--topic", "nosuch"), "orders.placed"),
        (("delayed", "list", "--type", "nosuch"), "orders.placed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_unknown_name_in_a_filter_is_refused(run: Run, words: tuple[str, ...], declared: str):
    result = run(*words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "'nosuch': the application does not declare this name" in result.stderr
    assert f"(declared: {declared})" in result.stderr


def test_handled_type_is_known_among_received_events_only():
    shield = ShieldTx(Settings(source="orders", database_url=SecretStr("sqlite://")))
    shield.declare("orders.placed")
    shield.consumer("stock").handles("paid")(lambda session, event: None)

    check_event_type(shield, "paid", received=True)
    with pytest.raises(ConfigurationError, match="'paid': the application does not declare"):
        check_event_type(shield, "paid")


@pytest.mark.parametrize(
    "words", [("--group", "nosuch"), ("--topic", "nosuch"), ("--type", "nosuch")]
)
def test_unknown_name_without_an_application_is_noted(run: Run, words: tuple[str, str]):
    result = run("dead", "list", *words, "--json", app=False)

    assert (result.exit_code, json.loads(result.stdout)) == (0, [])
    assert f"{' '.join(words)} cannot be compared with the declared names" in result.stderr


@pytest.mark.parametrize("words", [("--group", "old"), ("--topic", "paid")])
def test_name_of_a_waiting_row_is_known(shop: Shop, run: Run, words: tuple[str, str]):
    park(shop)

    result = run("dead", "list", "--status", "DEAD", *words, SHIELDTX_TOPIC_PREFIX="t.")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "no dead letters\n"


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--group", "stock"),
        ("--topic", "orders.placed"),
        ("--topic", "orders.placed.commit"),
        ("--type", "orders.placed"),
    ],
)
def test_declared_name_is_known(run: Run, option: str, name: str):
    assert run("dead", "list", option, name).stdout == "no dead letters\n"


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (("list",), "more exist: raise --limit\n"),
        (
            ("discard", "--status", "PARKED", "--reason", "x", "--yes"),
            "more exist: raise --limit\n",
        ),
    ],
)
def test_limit_that_cuts_a_list_is_reported(shop: Shop, run: Run, words: tuple[str, ...], end: str):
    for offset in range(3):
        park(shop, offset=offset)

    cut = run("dead", *words, "--limit", "2", "--json")

    assert len(json.loads(cut.stdout)) == 2
    assert cut.stderr.startswith(end)


def test_limit_that_shows_all_rows_is_not_reported(shop: Shop, run: Run):
    for offset in range(2):
        park(shop, offset=offset)

    assert run("dead", "list", "--limit", "2").stderr == ""
