"""Parts of the Kafka client that shieldtx replaces, and settings that the client would ignore."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka.errors import KafkaError, MessageSizeTooLargeError, TopicAuthorizationFailedError
from kafka.net.manager import KafkaConnectionManager

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.private_parts import missing_parts, require_parts
from shieldtx.brokers.kafka.publish_request import text_of
from shieldtx.errors import ConfigurationError


def test_client_has_the_parts_that_are_replaced() -> None:
    assert list(missing_parts()) == []


def test_client_without_such_a_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_parts.cache_clear()
    monkeypatch.delattr(KafkaConnectionManager, "_build_transport")
    with pytest.raises(ConfigurationError, match=r"kafka-python .*_build_transport.*install"):
        require_parts()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize("name", ["sasl_mechanism", "sasl_username", "sasl_password"])
def test_account_without_effect_is_refused(protocol: str, name: str) -> None:
    given = {name: "PLAIN"}
    variable = f"SHIELDTX_KAFKA_{name.upper()}"
    problem = f"{variable} is set, but {protocol} uses no account"
    with pytest.raises(ConfigurationError, match=problem):
        KafkaConnection(bootstrap_servers="a:1", security_protocol=protocol, **given)


@pytest.mark.parametrize("missing", ["sasl_mechanism", "sasl_username", "sasl_password"])
def test_incomplete_account_is_refused(missing: str) -> None:
    account = {"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": "b"}
    del account[missing]
    with pytest.raises(ConfigurationError, match="SASL"):
        KafkaConnection(bootstrap_servers="a:1", security_protocol="SASL_SSL", **account)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_certificates_without_effect_are_refused(protocol: str, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.touch()
    account = {"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": "b"}
    given = account if protocol.startswith("SASL") else {}
    with pytest.raises(ConfigurationError, match="uses no certificates"):
        KafkaConnection(
            bootstrap_servers="a:1", security_protocol=protocol, ssl_cafile=str(file), **given
        )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            MessageSizeTooLargeError(None),
            "MessageSizeTooLargeError: the record is larger than max.message.bytes of its topic",
        ),
        (TopicAuthorizationFailedError("orders"), "TopicAuthorizationFailedError: orders"),
        (TopicAuthorizationFailedError(None), "TopicAuthorizationFailedError"),
        (KafkaError(), "KafkaError"),
    ],
)
def test_text_of_an_error_has_its_meaning_and_no_number(error: KafkaError, text: str) -> None:
    assert text_of(error) == text
