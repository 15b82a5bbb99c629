"""docker-compose.yml and the Dockerfile match each other, the schema and shieldtx's settings."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer.main
from ruamel.yaml import YAML

from shieldtx import Settings
from shieldtx.cli.program import program
from shieldtx.reconcile.config import read_configuration
from tests.support.deployment import groups_of, understood
from tests.support.project import ROOT

COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = YAML(typ="safe").load(COMPOSE)["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)
COMMANDS = sorted(name for name in OURS if "entrypoint" not in SERVICES[name])
WORKERS = [name for name in COMMANDS if "SHIELDTX_APP" in SERVICES[name]["environment"]]
APPLICATIONS = sorted({SERVICES[name]["environment"]["SHIELDTX_APP"] for name in WORKERS})
VARIABLE = re.compile(r"\$\{(\w+)(:[?-])([^}]*)\}")


def filled(text: str) -> str:
    """Return the text with its variables filled in, as Compose passes it to a container."""
    with_values = VARIABLE.sub(lambda found: found[3] if found[2] == ":-" else "secret", text)
    return with_values.replace("$$", "$")


def environment(service: str) -> dict[str, str]:
    return {name: filled(value) for name, value in SERVICES[service]["environment"].items()}


def parameters(command: Any) -> list[Any]:
    inner = [p for child in getattr(command, "commands", {}).values() for p in parameters(child)]
    return [*command.params, *inner]


def test_compose_file_fits_the_compose_schema() -> None:
    check = subprocess.run(
        [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            COMPOSE,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert check.returncode == 0, check.stdout


def test_service_waits_for_reachable_conditions_only() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            is_healthy = how["condition"] == "service_healthy"
            assert needed in SERVICES, f"{name} waits for {needed}, which is no service"
            assert is_healthy == ("healthcheck" in SERVICES[needed]), f"{name} waits for {needed}"
            assert is_healthy or SERVICES[needed]["restart"].startswith("on-failure")


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line_accepts_the_command_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in environment(name).items():
        monkeypatch.setenv(variable, value)

    assert understood(SERVICES[name]["command"]) in {
        "db upgrade",
        "topics create",
        "relay",
        "consume",
        "reconcile",
    }


def test_reconciliation_keeps_running_and_finds_all_services() -> None:
    """It finds the broker, too."""
    reconcile = SERVICES["reconcile"]
    folders = dict(volume.split(":")[1::-1] for volume in reconcile["volumes"])
    variables = environment("reconcile")

    found = read_configuration(ROOT / folders[variables["SHIELDTX_RECONCILE_CONFIG"]], variables)

    assert {service.name for service in found.services} == {"orders", "stock"}
    assert found.broker is not None
    assert found.broker.bootstrap == filled(
        SERVICES["orders-relay"]["environment"]["SHIELDTX_KAFKA_BOOTSTRAP"]
    )
    assert "--cron" in reconcile["command"]


def test_every_variable_is_one_that_shieldtx_reads() -> None:
    settings = {f"SHIELDTX_{name.upper()}" for name in Settings.model_fields}
    options = {p.envvar for p in parameters(typer.main.get_command(program)) if p.envvar}
    for name in OURS:
        given = {v for v in environment(name) if v.startswith("SHIELDTX_")}
        assert given <= settings | options, name


@pytest.mark.parametrize("application", APPLICATIONS)
def test_settings_load_an_application_with_the_consumed_groups(
    application: str,
) -> None:
    mine = [n for n in WORKERS if SERVICES[n]["environment"]["SHIELDTX_APP"] == application]
    consumed = {SERVICES[n]["command"][1] for n in mine if SERVICES[n]["command"][0] == "consume"}
    assert consumed == groups_of(application, environment(mine[0]))


def test_file_has_no_password_and_example_names_all_variables() -> None:
    text = COMPOSE.read_text()
    example = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    used = {name: kind for name, kind, _ in VARIABLE.findall(text)}
    passwords = {name for name in used if name.endswith("PASSWORD")}

    assert used.keys() == example.keys()
    assert passwords
    assert all(used[name] == ":?" and not example[name] for name in passwords)
    for given in re.findall(r"PASSWORD: (.+)|://\w+:(.+?)@", text):
        assert all(VARIABLE.fullmatch(value) for value in given if value)


def test_every_image_is_a_dockerfile_stage_without_root() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    lines_of = {re.findall(r" AS (\S+)", stage)[0]: stage.splitlines() for stage in stages}
    for name in OURS:
        lines = lines_of[SERVICES[name]["build"]["target"]]
        assert [line for line in lines if line.startswith("USER ")][-1:] == ["USER shieldtx"], name


def test_files_that_the_dockerfile_copies_are_in_the_context() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert copied == let_in
    assert all((ROOT / source).exists() for source in copied)
