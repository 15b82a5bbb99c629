"""The error of a failed connection names why the attempts failed, not that time ran out."""

from __future__ import annotations

import socket
import time

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaConnectionError

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.errors import BrokerUnavailable
from tests.support.unusable_ports import full, hanging_up_then_full

ONE = 1
ALL = 1_000
"""The number of bytes that the server reads before it closes the connection."""


def account(port: int, protocol: str = "SASL_PLAINTEXT") -> KafkaConnection:
    return KafkaConnection(
        bootstrap_servers=f"127.0.0.1:{port}",
        security_protocol=protocol,
        sasl_mechanism="PLAIN",
        sasl_username="shop",
        sasl_password="x",
    )


def error_of(connection: KafkaConnection) -> str:
    with pytest.raises(BrokerUnavailable) as error:
        connection.open(KafkaAdminClient, within=0.5)
    return str(error.value)


@pytest.mark.parametrize("read", [ALL, ONE])
def test_attempt_cut_off_by_the_deadline_hides_no_earlier_reason(
    read: int,
) -> None:
    with hanging_up_then_full(after=read) as port:
        assert "check username and password" in error_of(account(port))


def test_attempts_that_are_all_cut_off_report_a_timeout() -> None:
    with full() as port:
        assert "Connection timed out" in error_of(account(port))


@pytest.mark.parametrize("read", [ALL, ONE])
def test_port_that_closes_tls_connections_is_reported_for_tls(read: int) -> None:
    with hanging_up_then_full(after=read) as port:
        error = error_of(account(port, "SASL_SSL"))
    assert "does this port speak TLS?" in error
    assert "password" not in error


def test_port_that_closes_plain_connections_may_expect_tls() -> None:
    with hanging_up_then_full(after=ALL) as port:
        error = error_of(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}"))
    assert error.endswith(
        "expects TLS or an account hangs up too: SHIELDTX_KAFKA_SECURITY_PROTOCOL)"
    )


def test_server_silent_over_tls_times_out_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        error = error_of(account(server.getsockname()[1], "SASL_SSL"))
    assert time.monotonic() - began < 20
    assert "timed out (does this port speak TLS?)" in error


def test_later_connection_loss_does_not_mention_accounts() -> None:
    with (
        pytest.raises(BrokerUnavailable) as error,
        account(9092).translated("describing topics"),
    ):
        raise KafkaConnectionError("socket disconnected")
    assert str(error.value).endswith("socket disconnected")
