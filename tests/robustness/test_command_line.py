"""Hostile arguments and environments: one line with the problem, in time, without secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from shieldtx.embedded import EmbeddedPostgres
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import Parked
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.schema import Schema
from shieldtx.store.tables import tables
from tests.acceptance import forked
from tests.robustness.strategies import INJECTIONS
from tests.support.project import ROOT

SECRET = "s3cr3tw0rd"
UNREACHABLE = "127.0.0.1:1"
UNHEARD_OF = "01a1ff3e-6fbd-72c3-aad7-21c0b0ab8860"
RAW = "\udcff\udcfe"
"""Bytes that are not UTF-8, as Python represents them in arguments and variables."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The exit status and the output of a command; bytes that are not UTF-8 are lone surrogates."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a migrated database with a password in it, and a parked record of odd bytes."""
    name = f"test_{uuid4().hex}"
    postgres.create_database(name)
    engine = create_engine(postgres.url(name), poolclass=NullPool)
    Schema(engine).upgrade()
    odd = ReceivedRecord(
        topic="t.commit",
        partition=0,
        offset=7,
        key="schl\u00fcssel \x1b[31m".encode(),
        value=b"\xff\x00\x1b[2J",
        headers=(("na\udcffme", b"\xfe"), ("\u0444", None)),
    )
    SqlInboxStore(engine, tables()).receive("stock", [], [Parked(record=odd, reason="\u2620 odd")])
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{SECRET}'"))
    url = engine.url.set(username=name, password=SECRET)
    yield url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP ROLE {name}"))
    engine.dispose()
    postgres.drop_database(name)


@pytest.fixture
def run(database: str, tmp_path: Path) -> Run:
    """Run a command until it exits; `out` redirects standard output."""

    def run(*words: str, out: str = "", **environment: str) -> Result:
        files = [tmp_path / name for name in ("stdin", "stdout", "stderr")]
        for file in files:
            file.write_bytes(b"")
        into = [files[0], Path(out) if out else files[1], files[2]]
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        status = forked.run(
            words,
            environment=kept
            | {
                "SHIELDTX_SOURCE": "shop",
                "SHIELDTX_DATABASE_URL": database,
                "SHIELDTX_KAFKA_BOOTSTRAP": UNREACHABLE,
                "SHIELDTX_KAFKA_SASL_PASSWORD": SECRET,
                "PYTHONPATH": str(ROOT),
            }
            | environment,
            folder=ROOT,
            files=into,
        )
        said = [file.read_bytes().decode(errors="backslashreplace") for file in files[1:]]
        return Result(status=status, out=said[0], err=said[1])

    return run


def assert_one_line(result: Result, *told: str) -> None:
    """Assert a failure with its reason in one line of printable text, without any secret."""
    assert result.status in {1, 2, 3}, result
    assert "Traceback" not in result.err, result.err
    lines = [line for line in result.err.splitlines() if line]
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: ")
    assert lines[0].isprintable()
    assert SECRET not in result.out + result.err
    for word in told:
        assert word in lines[0]


# --- the application ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "told"),
    [
        *((f"{text}:shield", "--app") for text in INJECTIONS if text.strip()),
        *((f"tests.robustness.shop:{text}", "tests.robustness.shop") for text in INJECTIONS[:4]),
        (RAW, "--app"),
        (f"{RAW}:shield", "--app"),
        (f"tests.robustness.shop:{RAW}", "--app"),
        (":", "--app"),
        (":shield", "--app"),
        (".:shield", "--app"),
        ("..tests:shield", "--app"),
        ("tests.robustness.shop:shield.", "--app"),
        ("tests.robustness.shop:shield..outbox", "--app"),
        ("tests.robustness.shop:__builtins__", "--app"),
        ("os:environ", "not a ShieldTx"),
        ("x" * 5000 + ":shield", "--app"),
        ("a." * 2000 + "a:shield", "--app"),
    ],
)
def test_any_text_as_the_application_costs_one_line(run: Run, app: str, told: str) -> None:
    assert_one_line(run("--app", app, "relay", "--once"), told)


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("raise", "RuntimeError: first line second line"),
        ("exit", "SystemExit"),
        ("exit loudly", "SystemExit"),
        ("recurse", "RecursionError"),
    ],
)
def test_module_that_fails_at_import_is_named_with_the_place(
    run: Run, does: str, told: str
) -> None:
    result = run("--app", "tests.robustness.shop:shield", "relay", SHOP_DOES=does)
    assert_one_line(result, told, "importing tests.robustness.shop failed")
    assert result.status == 2


def test_module_output_stays_out_of_the_results(run: Run) -> None:
    result = run("--app", "tests.robustness.shop:shield", "status", "--json", SHOP_DOES="print")
    assert result.status == 0, result.err
    assert isinstance(json.loads(result.out), dict)
    assert "hello from the shop" in result.err


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "group", [*(i for i in INJECTIONS if i not in {"", "-1"}), RAW, "x" * 5000]
)
def test_any_text_as_a_group_is_refused(run: Run, group: str) -> None:
    assert_one_line(run("--app", "tests.robustness.shop:shield", "consume", group), "group")


@pytest.mark.parametrize(
    "words",
    [
        ("dead", "show", RAW),
        ("dead", "show", f"stock/{RAW}/0/0"),
        ("dead", "show", "stock/t.commit/0/" + "9" * 30),
        ("dead", "show", "stock/t.commit/0/" + "9" * 5000),
        ("dead", "show", "stock/t.commit/\u0660/\u00b2"),
        ("dead", "show", "stock/'; DROP TABLE shield_parked; --/0/0"),
        ("dead", "replay", "--yes", "x'; DROP TABLE shield_outbox; --"),
        ("dead", "replay", "--yes", UNHEARD_OF, "--who", RAW),
        ("dead", "list", "--group", RAW),
        ("dead", "list", "--topic", RAW),
        ("db", "upgrade", "x'; DROP TABLE shield_outbox; --"),
        ("db", "upgrade", "head:base"),
        ("db", "upgrade", "head:base", "--sql"),
        ("db", "upgrade", f"{RAW}:head", "--sql"),
        ("db", "downgrade", "--yes", "x'; DROP TABLE shield_outbox; --"),
        ("db", "downgrade", "--yes", RAW),
        ("db", "upgrade", RAW),
        ("reconcile", "--config", RAW),
        ("reconcile", "--config", "/dev/null/reconcile.toml"),
        ("reconcile", "--config", "."),
        ("reconcile", "--margin", "nan"),
        ("reconcile", "--margin", "1e400"),
        ("reconcile", "--margin", "-1"),
        ("reconcile", "--since", "yesterday"),
        ("reconcile", "--since", "2026-01-01T00:00:00"),
        ("reconcile", "--since", "2026-01-02T00:00:00Z", "--until", "2026-01-01T00:00:00Z"),
        ("reconcile", "--out", "/dev/null/x"),
    ],
    ids=" ".join,
)
def test_hostile_arguments_are_reported_in_one_line(
    run: Run, database: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    config = tmp_path / "reconcile.toml"
    config.write_text('[services.a]\nurl = "URL"\n')
    assert_one_line(run(*words, URL=database, SHIELDTX_RECONCILE_CONFIG=str(config)))


@pytest.mark.parametrize(
    "service",
    [
        f'url = "postgresql://x:{SECRET}@h/d"',
        'url = "BAD_PORT"',
        'url = "URL"\nschema = "\\"x"',
        f'url = "URL"\npassword = "{SECRET}"',
        f'url = "URL"\nretention = "{SECRET}"',
        'url = "URL"\n[[services.a.groups]]\nname = "\'; --"\nreceives = ["t"]',
        'url = "URL"\n[[services.a.groups]]\nname = "g"',
        f'url = "{SECRET}',
    ],
)
def test_hostile_config_file_is_reported_in_one_line(
    run: Run, database: str, service: str, tmp_path: Path
) -> None:
    config = tmp_path / "reconcile.toml"
    config.write_text(f"[services.a]\n{service}\n")
    bad = f"postgresql://shop:x@h:{SECRET}/d"
    result = run("reconcile", "--config", str(config), URL=database, BAD_PORT=bad)
    assert_one_line(result, "reconcile.toml")
    assert result.status == 3


def test_sql_text_finds_nothing_and_drops_nothing(run: Run, database: str) -> None:
    for hostile in INJECTIONS:
        if hostile and not hostile.startswith("-"):
            result = run("dead", "list", "--json", "--group", hostile, "--topic", hostile)
            assert (result.status, json.loads(result.out)) == (0, []), result.err
    engine = create_engine(database)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM shield_parked")) == 1
    engine.dispose()


# --- environments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SHIELDTX_DATABASE_URL", f"postgresql://shop:{SECRET}@127.0.0.1:1/d"),
        ("SHIELDTX_DATABASE_URL", f"postgresql://shop:{SECRET}@127.0.0.1:99999/d"),
        ("SHIELDTX_DATABASE_URL", f"postgresql://shop:{SECRET}@[::1]:1/d"),
        ("SHIELDTX_DATABASE_URL", f"postgresql://shop:{SECRET}@[::1/d"),
        ("SHIELDTX_DATABASE_URL", f"postgresql://127.0.0.1:1/d?password={SECRET}"),
        ("SHIELDTX_DATABASE_URL", f"postgresql://127.0.0.1:1/d?pasword={SECRET}"),
        ("SHIELDTX_DATABASE_URL", f"postgresql://shop:{SECRET}@/d?host=127.0.0.1&port=1&port=2"),
        ("SHIELDTX_DATABASE_URL", f"postgresql://{RAW}:{SECRET}@127.0.0.1:1/d"),
        ("SHIELDTX_DATABASE_URL", f"postgresql://shop:{SECRET}%00@127.0.0.1:1/d"),
        ("SHIELDTX_DATABASE_URL", f"postgresql://shop:{SECRET}@nowhere.invalid/d"),
        ("SHIELDTX_DATABASE_URL", f"postgresql+asyncpg://shop:{SECRET}@127.0.0.1/d"),
        ("SHIELDTX_DATABASE_URL", "sqlite:////nowhere/at/all/shop.db"),
        ("SHIELDTX_SOURCE", RAW),
        ("SHIELDTX_SOURCE", 'x"; DROP TABLE shield_outbox; --'),
        ("SHIELDTX_DATABASE_SCHEMA", 'x"; DROP TABLE shield_outbox; --'),
        ("SHIELDTX_DATABASE_SCHEMA", "no_such_schema"),
        ("SHIELDTX_TOPIC_PREFIX", "a\nb"),
        ("SHIELDTX_RELAY_LEASE", "9" * 5000),
    ],
)
def test_hostile_environment_is_reported_in_one_line(run: Run, variable: str, value: str) -> None:
    assert_one_line(run("status", **{variable: value}))


@pytest.mark.parametrize(
    "dbname", ['x"; DROP DATABASE postgres; --', "x' OR '1'='1", "a b%20c", "\u202e\x1b[31m", "%s"]
)
def test_database_name_is_used_as_a_name_only(run: Run, database: str, dbname: str) -> None:
    url = database.rpartition("/")[0]
    assert_one_line(run("status", SHIELDTX_DATABASE_URL=f"{url}/{dbname}"), "does not exist")


@pytest.mark.parametrize("bootstrap", ["h:99999", "[::1]", ",", "a:1,", RAW, "h\n:0"])
def test_any_text_as_the_broker_address_ends_in_time(run: Run, bootstrap: str) -> None:
    shop = ("--app", "tests.robustness.shop:shield")
    assert_one_line(run(*shop, "topics", "list", SHIELDTX_KAFKA_BOOTSTRAP=bootstrap), "KAFKA")


# --- output --------------------------------------------------------------------------------------

SHOW = ("dead", "show", "stock/t.commit/0/7", "--payload")


def anew(database: str, *words: str, where: str = "", **environment: str) -> Result:
    """Run a command in a new Python process, as a shell starts it."""
    script = f'exec "$0" -c "from shieldtx.cli import main; main()" "$@" {where}'
    done = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable, *words],
        env={
            "PATH": os.environ["PATH"],
            "SHIELDTX_SOURCE": "shop",
            "SHIELDTX_DATABASE_URL": database,
            "PYTHONPATH": str(ROOT),
        }
        | environment,
        cwd=ROOT,
        capture_output=True,
        timeout=forked.TIMEOUT_S,
        check=False,
    )
    said = [text.decode(errors="backslashreplace") for text in (done.stdout, done.stderr)]
    return Result(status=done.returncode, out=said[0], err=said[1])


def assert_shown(result: Result) -> None:
    """Assert that the odd record is shown, without control characters for a terminal."""
    assert (result.status, result.err) == (0, "")
    assert "stock/t.commit/0/7" in result.out
    assert "\x1b" not in result.out


def test_any_bytes_are_shown_without_change_of_meaning(run: Run) -> None:
    for words in (SHOW, ("dead", "list")):
        assert_shown(run(*words))
        result = run(*words, "--json")
        assert_shown(result)
        assert json.loads(result.out)[0]["key"] == "schl\u00fcssel \x1b[31m"


@pytest.mark.parametrize("form", ["plain", "json"])
def test_any_bytes_are_shown_on_an_ascii_terminal(database: str, form: str) -> None:
    codes = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = anew(database, *SHOW, *(["--json"] if form == "json" else []), **codes)
    assert_shown(result)
    assert result.out.isascii()
    if form == "json":
        [told] = json.loads(result.out)
        assert told["key"] == "schl\u00fcssel \x1b[31m"
        assert told["headers"] == [["na\udcffme", "\\xfe"], ["\u0444", None]]


@pytest.mark.parametrize(
    "words", [("dead", "list"), ("status",), ("status", "--json")], ids=" ".join
)
def test_results_on_a_full_device_are_a_failure(run: Run, words: tuple[str, ...]) -> None:
    assert_one_line(run(*words, out="/dev/full"), "standard output", "No space left on device")


def test_closed_standard_output_is_a_failure(database: str) -> None:
    assert_one_line(anew(database, "status", where=">&-"), "standard output is closed")


def test_closed_standard_error_is_not_a_failure(database: str) -> None:
    result = anew(database, "status", "--json", where="2>&-")
    assert result.status == 0
    assert isinstance(json.loads(result.out), dict)
