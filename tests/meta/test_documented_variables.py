from __future__ import annotations

import re

import pytest

from shieldtx import Settings
from shieldtx.errors import ConfigurationError
from shieldtx.settings.environment import OTHER_VARIABLES, unknown
from tests.support.project import ROOT


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a service."""
    monkeypatch.setenv("SHIELDTX_SOURCE", "orders")
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", "sqlite://")
    return monkeypatch


def test_misspelt_variables_are_named_with_the_nearest_name(
    service: pytest.MonkeyPatch,
) -> None:
    service.setenv("SHIELDTX_RELAY_BATCHSIZE", "10")
    service.setenv("SHIELDTX_TOPIC_PREFFIX", "a-")
    service.setenv("SHIELDTX_XYZ", "1")
    service.setenv("SHIELDTX_SHARDS", "many")

    with pytest.raises(ConfigurationError) as caught:
        Settings.from_env()

    message = str(caught.value)
    assert "SHIELDTX_RELAY_BATCHSIZE: shieldtx has no such setting; did you mean " in message
    assert "SHIELDTX_RELAY_BATCH_SIZE?" in message
    assert "SHIELDTX_TOPIC_PREFIX?" in message
    assert "SHIELDTX_XYZ: shieldtx has no such setting; give a variable of your own" in message
    assert "SHIELDTX_SHARDS: " in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHIELDTX_RELAY_SERVICE_HOST", "10.0.0.11"),
        ("SHIELDTX_RELAY_SERVICE_PORT", "9000"),
        ("SHIELDTX_RELAY_SERVICE_PORT_METRICS", "9000"),
        ("SHIELDTX_RELAY_PORT", "tcp://10.0.0.11:9000"),
        ("SHIELDTX_RELAY_PORT_9000_TCP", "tcp://10.0.0.11:9000"),
        ("SHIELDTX_RELAY_PORT_9000_TCP_ADDR", "10.0.0.11"),
        ("SHIELDTX_RELAY_PORT_9000_UDP_PROTO", "udp"),
        ("SHIELDTX_PORT", "tcp://10.0.0.11:9000"),
        ("SHIELDTX_SERVICE_HOST", "10.0.0.11"),
        ("SHIELDTX_CACHE", "/var/cache"),
        ("SHIELDTX_JDBC_JAR", "/opt/postgresql.jar"),
        ("shieldtx_trace", "true"),
        ("PATH", "/bin"),
    ],
)
def test_variables_of_kubernetes_and_tools_are_accepted(
    service: pytest.MonkeyPatch, name: str, value: str
) -> None:
    service.setenv(name, value)

    assert Settings.from_env().source == "orders"


def test_port_variable_unlike_those_of_kubernetes_is_a_mistake() -> None:
    [line] = unknown({"SHIELDTX_KAFKA_PORT": "9092"}, ["kafka_bootstrap"])

    assert line.startswith("SHIELDTX_KAFKA_PORT: ")


def test_every_variable_that_the_code_names_is_known() -> None:
    named = {
        name
        for folder in ("shieldtx", "spark", "migrations")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"SHIELDTX_[A-Z0-9_]*[A-Z0-9]\b", path.read_text())
    }

    assert unknown(dict.fromkeys(named, ""), Settings.model_fields) == []
    assert named >= set(OTHER_VARIABLES)


def test_unrelated_variable_gets_no_proposal() -> None:
    [line] = unknown({"SHIELDTX_DB_PASSWORD": "secret"}, ["kafka_sasl_password", "database_url"])
    assert "did you mean" not in line
    assert "secret" not in line
