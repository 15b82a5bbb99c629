"""The program as a whole: help, settings, applications, errors, logs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shieldtx
from shieldtx.settings.settings import Settings
from tests.acceptance.conftest import Shop
from tests.conftest import Eventually

COMMANDS = [
    ["relay"],
    ["consume"],
    ["status"],
    ["reconcile"],
    ["db", "upgrade"],
    ["db", "current"],
    ["db", "check"],
    ["topics", "create"],
    ["topics", "list"],
    ["dead", "list"],
    ["dead", "show"],
    ["dead", "replay"],
]


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """Return the --help of the program ("") and of each command, all run in one process."""
    script = """
import json, sys
from typer.testing import CliRunner
from shieldtx.cli.program import program
told = {}
for words in json.load(sys.stdin):
    told[" ".join(words)] = CliRunner().invoke(program, [*words, "--help"]).output
print(json.dumps(told))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps([[], *COMMANDS]),
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(json.loads(done.stdout))


def test_version_is_that_of_the_package(shop: Shop) -> None:
    assert re.fullmatch(r"shieldtx \d+\.\d+\.\d+(\.dev\d+)?\n", shop.orders.ok("--version").out)


def test_help_names_every_setting(helps: dict[str, str]) -> None:
    missing = {f"SHIELDTX_{name.upper()}" for name in Settings.model_fields}.difference(
        re.findall(r"SHIELDTX_[A-Z_]+", helps[""])
    )
    assert missing == set()


@pytest.mark.parametrize("command", [" ".join(words) for words in COMMANDS])
def test_help_of_each_command_has_example_and_settings(command: str, helps: dict[str, str]) -> None:
    told = helps[command]

    assert command in told.partition("Example: shieldtx ")[2]
    assert "SHIELDTX_" in told


def test_all_invalid_settings_are_named_without_secrets(shop: Shop) -> None:
    result = shop.orders.run(
        "status",
        app=False,
        SHIELDTX_SHARDS="0",
        SHIELDTX_DATABASE_URL="s3cret-word",
        SHIELDTX_RELAY_LEASE="soon",
    )

    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: SHIELDTX_DATABASE_URL: not a database URL")
    assert "SHIELDTX_SHARDS: " in result.err
    assert "SHIELDTX_RELAY_LEASE: " in result.err
    assert result.err.count("\n") == 1
    assert "s3cret-word" not in result.err


def test_invalid_settings_are_named_if_an_application_reads_them(shop: Shop) -> None:
    result = shop.orders.run("relay", SHIELDTX_SHARDS="many")

    assert result.status == 2
    assert result.err.startswith("error: SHIELDTX_SHARDS: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("app", "problem"),
    [
        ("shop.orders", "write it as module:object, for example shop.orders:shield"),
        ("shop.nowhere:shield", "there is no module 'shop.nowhere' in "),
        ("nowhere.at.all:shield", "there is no module 'nowhere' in "),
        ("shop.orders:nothing", "shop.orders has no 'nothing'"),
        ("shop.orders:place", "that is a function, not a ShieldTx"),
        ("shop.orders:orders.name", "that is a str, not a ShieldTx"),
    ],
)
def test_missing_application_is_one_line(app: str, problem: str, shop: Shop) -> None:
    result = shop.orders.run("--app", app, "relay")

    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: --app")
    assert problem in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import shop_of_nobody", "ModuleNotFoundError: No module named 'shop_of_nobody'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError: "),
    ],
)
def test_application_import_error_names_its_place(
    code: str, problem: str, shop: Shop, tmp_path: Path
) -> None:
    module = tmp_path / "faulty_shop.py"
    module.write_text(f"# a comment\n{code}\n")

    result = shop.orders.run(
        "--app", "faulty_shop:shield", "relay", anew=True, PYTHONPATH=str(tmp_path)
    )

    assert result.status == 2
    assert result.err.startswith(f"error: --app: importing faulty_shop failed with {problem}")
    assert f"({module}, line 2)" in result.err
    assert result.err.count("\n") == 1


def test_common_options_may_precede_or_follow_the_command(shop: Shop) -> None:
    shop.migrate()
    for words in (
        ["--app", "shop.orders:shield", "relay", "--once"],
        ["relay", "--once", "--app=shop.orders:shield"],
        ["relay", "--log-level", "error", "--app", "shop.orders:shield", "--once"],
    ):
        result = shop.orders.run(*words, app=False)
        assert result.status == 0, result.err


def test_application_is_found_in_the_current_directory(shop: Shop, tmp_path: Path) -> None:
    shop.migrate()
    package = Path(shieldtx.__file__).parents[1]

    result = shop.orders.run(
        "relay", "--once", anew=True, PYTHONPATH=str(package), PYTHONSAFEPATH="1"
    )

    assert result.status == 0, result.err


def test_usage_error_has_another_status_than_a_failure(shop: Shop) -> None:
    for words in (["bogus"], ["dead", "list", "--limit", "0"], ["consume"], ["relay", "--bogus"]):
        result = shop.orders.run(*words)
        assert (result.status, result.out) == (2, ""), words
        assert "Traceback" not in result.err


def test_json_logs_go_to_standard_error(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    shop.place([1], quantity=1000)
    shop.orders.ok("relay", "--once")

    group = shop.stock.environment["SHOP_STOCK_GROUP"]
    result = shop.stock.ok("consume", group, "--once", "--json", "--log-format", "json")

    assert result.data["refused"] == 1
    entries = [json.loads(line) for line in result.err.splitlines()]
    (entry,) = [entry for entry in entries if entry.get("action") == "event_refused"]
    assert (entry["message"], entry["group"]) == ("event is refused", group)
    assert entry["level"] == "info"
    assert entry["logger"] == "shieldtx.consumer.attempt_log"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry["time"])


def test_failing_database_logs_one_line_each_time(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    relay = shop.orders.start("relay", SHIELDTX_RELAY_POLL_INTERVAL="0.2")
    shop.orders.execute("ALTER TABLE shield_shard RENAME TO shield_shard_away")

    eventually(lambda: "job=poll " in relay.log.read_text(), "it logs the failure")
    shop.orders.execute("ALTER TABLE shield_shard_away RENAME TO shield_shard")
    shop.place([1])

    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 1}, "it goes on by itself")
    assert "the database refused a statement: relation" in relay.log.read_text()
    assert "Traceback" not in relay.log.read_text()
    eventually(lambda: "action=job_recovered" in relay.log.read_text(), "the end is logged")
    (failed,) = re.findall(r"action=job_failed .*job=poll .*", relay.log.read_text())
    assert re.search(rf" service=\S+ pid={relay.pid}\b", failed)


def test_module_is_the_program_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shieldtx", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"shieldtx {shieldtx.__version__}\n"
