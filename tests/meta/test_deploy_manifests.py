"""The units and manifests of examples/deploy run commands and set variables that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from shieldtx import Settings
from shieldtx.settings.environment import unknown
from tests.docs.pages import DOCS
from tests.support.deployment import groups_of, understood
from tests.support.project import ROOT

DEPLOY = ROOT / "examples" / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
KUSTOMIZATION = DEPLOY / "kubernetes" / "kustomization.yaml"
MANIFESTS = sorted({*(DEPLOY / "kubernetes").glob("*.yaml")} - {KUSTOMIZATION})
GRANTS = sorted(DEPLOY.glob("*.sql"))
STOP_TIMEOUT_S = Settings.model_fields["stop_timeout"].default.total_seconds()
VARIABLE = re.compile(r"SHIELDTX_[A-Z0-9_]+")


def name_of(path: Path) -> str:
    return path.name


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a manifest."""
    return [document for document in YAML(typ="safe").load_all(path) if document]


def pods(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the specification of each pod of a manifest."""
    for document in documents(path):
        spec = document.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None:
            yield template["spec"]


def containers(path: Path) -> list[dict[str, Any]]:
    """Return the containers of a manifest, those that run first included."""
    return [
        each for pod in pods(path) for each in (*pod.get("initContainers", []), *pod["containers"])
    ]


def probes() -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and the specification of each probe of the manifests."""
    return [
        (name, value)
        for path in MANIFESTS
        for container in containers(path)
        for name, value in container.items()
        if name.endswith("Probe")
    ]


def options(path: Path) -> list[tuple[str, str]]:
    """Return the settings of a unit in the order of the file."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#[")
    return [(name, value) for name, _, value in pairs]


def commands() -> list[list[str]]:
    """Return the arguments of each `shieldtx` in a unit or manifest."""
    given = [c["args"] for path in MANIFESTS for c in containers(path)]
    given += [probe["exec"]["command"][1:] for _, probe in probes()]
    started = (v for path in UNITS for name, v in options(path) if name == "ExecStart")
    return given + [shlex.split(line.replace("%i", "orders"))[1:] for line in started]


def test_kustomization_names_all_manifests_and_images() -> None:
    (kustomization,) = documents(KUSTOMIZATION)
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]
    images = {f"{each['name']}:{each['newTag']}" for each in kustomization["images"]}
    assert images == {c["image"] for path in MANIFESTS for c in containers(path)}


def test_every_command_is_one_of_the_command_line() -> None:
    known = {"db upgrade", "db check", "topics create", "relay", "consume", "reconcile"}
    assert {understood(command) for command in commands()} == known


@pytest.mark.parametrize("path", [*UNITS, *MANIFESTS], ids=name_of)
def test_every_variable_of_file_is_one_that_shieldtx_reads(path: Path) -> None:
    assert not unknown(dict.fromkeys(VARIABLE.findall(path.read_text()), ""), Settings.model_fields)


@pytest.mark.parametrize("path", MANIFESTS, ids=name_of)
def test_pods_of_manifest_are_confined_and_hold_no_secret(path: Path) -> None:
    for document in documents(path):
        assert document["apiVersion"]
        assert document["metadata"]["name"]
        assert document["kind"] != "Secret"
    for pod in pods(path):
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["enableServiceLinks"]
    for container in containers(path):
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_workers_have_more_time_to_stop_than_the_stop_timeout() -> None:
    units = [dict(options(path)) for path in UNITS if "@" in path.name]
    deployments = [pod for path in MANIFESTS for pod in pods(path) if "restartPolicy" not in pod]
    assert len(units) == len(deployments) == 2
    assert all(float(unit["TimeoutStopSec"]) > STOP_TIMEOUT_S for unit in units)
    assert all(pod["terminationGracePeriodSeconds"] > STOP_TIMEOUT_S for pod in deployments)
    assert all(
        (unit["Restart"], unit["StartLimitIntervalSec"]) == ("always", "0") for unit in units
    )


def test_workers_have_a_startup_probe_alone() -> None:
    """A probe that goes on would restart all workers in an outage of the database."""
    assert [name for name, _ in probes()] == ["startupProbe"] * 2
    for _, probe in probes():
        assert probe["exec"]["command"][0] == "shieldtx"
        # The command has more time than a connection attempt of libpq, which is 10 s.
        assert probe["timeoutSeconds"] > 10


def test_settings_of_manifests_load_application_with_its_group() -> None:
    [settings] = documents(DEPLOY / "kubernetes" / "settings.yaml")
    [consumer] = containers(DEPLOY / "kubernetes" / "consumer.yaml")
    environment = settings["data"] | {"SHIELDTX_DATABASE_URL": "sqlite://"}
    assert consumer["args"][1] in groups_of(environment["SHIELDTX_APP"], environment)


def test_every_file_is_linked_from_the_page() -> None:
    page = (DOCS / "how-to" / "deploy.md").read_text()
    missing = [
        path.name
        for path in [*UNITS, *MANIFESTS, *GRANTS]
        if f"(../../{path.relative_to(ROOT)})" not in page
    ]
    assert not missing


def test_what_the_page_shows_of_the_files_is_in_them() -> None:
    page = (DOCS / "how-to" / "deploy.md").read_text()
    shown = re.findall(r"^```(?:ini|yaml|sql)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    files = {path.read_text() for path in [*UNITS, *MANIFESTS, *GRANTS]}
    assert len(shown) == 4
    assert all(any(block in text for text in files) for block in shown)
