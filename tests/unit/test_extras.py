"""Optional packages: what is imported without them, and the error of a missing one."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shieldtx._extras import EXTRAS
from tests.support.project import ROOT

OPTIONAL = sorted(EXTRAS | {"confluent_kafka": "confluent", "pyspark": "spark", "jgo": "embedded"})
WRITER = """
import sys
import shieldtx

allowed = {name.partition(".")[0] for name in sys.modules}
assert allowed.isdisjoint(OPTIONAL), allowed.intersection(OPTIONAL)
assert "sqlalchemy" not in sys.modules
assert "pydantic" not in sys.modules

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from shieldtx import Event, Settings, ShieldTx

shield = ShieldTx(Settings(source="shop", database_url="URL"))

@shield.publishes("orders.placed", key="customer")
def place(session: Session, order: dict) -> dict:
    return order

shield.declare("orders.paid")
with Session(create_engine("URL")) as session, session.begin():
    place(session, {"customer": "Ada"})
    shield.outbox.add(session, Event(type="orders.paid", key="Ada", payload={}))
with Session(create_engine("URL")) as session:
    assert session.scalar(text("SELECT count(*) FROM shield_outbox")) == 2
imported = {name.partition(".")[0] for name in sys.modules}
print(sorted(imported.intersection(OPTIONAL)))
"""
# As if the packages were not installed.
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
SHOP = """
from shieldtx import Settings, ShieldTx
shield = ShieldTx(Settings(source="shop", database_url="sqlite://", kafka_bootstrap="k:1"))
"""
CRON = """
from shieldtx.scheduling.cron import run_by_crontab
run_by_crontab("0 2 * * *", print, configuration="nightly")
"""
REPORT = """
from shieldtx.reconcile.report import html
html._templates()
"""
COMMAND = "import sys; sys.argv[1:] = {words}; from shieldtx.cli import main; main()"


@pytest.mark.parametrize("are_missing", [True, False])
def test_writing_an_event_imports_no_optional_package(tmp_path: Path, are_missing: bool) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    _run(f"{SHOP.replace('sqlite://', url)}\nshield.schema.upgrade()", check=True)

    missing = _without(*OPTIONAL) if are_missing else ""
    done = _run(missing + WRITER.replace("OPTIONAL", repr(OPTIONAL)).replace("URL", url))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("missing", "extra", "use", "code"),
    [
        ("kafka", "kafka", "the Kafka broker", "shield.build_relay()"),
        ("alembic", "migrations", "the schema of the tables", "shield.schema.upgrade()"),
        ("apscheduler", "kafka", "a schedule", CRON),
        ("jinja2", "spark", "the report of a reconciliation", REPORT),
    ],
)
def test_missing_extra_is_named_with_its_command(
    missing: str, extra: str, use: str, code: str
) -> None:
    done = _run(_without(missing) + SHOP + code)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"shieldtx.errors.ConfigurationError: {use} needs the package {missing}, which is not "
        f"installed: pip install 'shieldtx[{extra}]'"
    )


@pytest.mark.parametrize(
    ("missing", "extra"), [("typer", "cli"), ("rich", "cli"), ("alembic", "migrations")]
)
def test_command_without_its_extra_is_one_line(missing: str, extra: str) -> None:
    done = _run(_without(missing) + COMMAND.format(words=["--version"]))

    assert done.returncode == 2
    assert done.stderr == (
        f"error: the command shieldtx needs the package {missing}, which is not installed: "
        f"pip install 'shieldtx[{extra}]'\n"
    )


def test_command_runs_without_the_extras_of_other_commands() -> None:
    others = {"apscheduler", "kafka", "crc32c", "jinja2", "confluent_kafka", "pyspark", "jgo"}

    done = _run(_without(*others) + COMMAND.format(words=["--version"]))

    assert (done.returncode, done.stderr) == (0, "")


def test_defect_in_an_import_is_not_a_missing_extra() -> None:
    broken = _without("mako")
    done = _run(f"{broken}{SHOP}shield.schema")

    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'mako'"


def test_every_guarded_package_is_in_its_extra() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    distributions = {"kafka": "kafka-python", "prometheus_client": "prometheus-client"}

    for package, extra in EXTRAS.items():
        name = distributions.get(package, package)
        listed = project["optional-dependencies"][extra]
        assert any(line.startswith(f"{name}>") for line in listed), (package, extra)
        assert not any(line.startswith(f"{name}>") for line in project["dependencies"])


def _without(*packages: str) -> str:
    return WITHOUT.replace("MISSING", repr(set(packages)))


def _run(code: str, *, check: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=check, timeout=120
    )
