"""What the error of a failed connection names: why the attempts failed, not that time ran out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaConnectionError

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.errors import BrokerUnavailable

UNREAD = 1
"""Bytes to read before hanging up; with some left unread, it is a reset."""
ALL = 1_000


@contextmanager
def full_port(hangs_up_after: int | None = None) -> Iterator[int]:
    """Open a port that lets nobody connect, but one on whom it hangs up after so many bytes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        server.settimeout(20)
        waiting = [socket.socket() for _ in range(2)]

        def fill() -> None:
            # Nobody accepts them, so that the next one's packets find no room.
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(server.getsockname())

        def hang_up(after: int) -> None:
            first, _ = server.accept()
            with first:
                first.recv(after)
                fill()

        thread = threading.Thread(target=hang_up, args=[hangs_up_after], daemon=True)
        if hangs_up_after is None:
            fill()
        else:
            thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            for client in waiting:
                client.close()
    if hangs_up_after is not None:
        thread.join(20)


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


@pytest.mark.parametrize("read", [ALL, UNREAD])
def test_an_attempt_that_the_deadline_cuts_off_does_not_hide_why_the_others_failed(
    read: int,
) -> None:
    with full_port(hangs_up_after=read) as port:
        assert "check username and password" in error_of(account(port))


def test_attempts_that_are_all_cut_off_are_named_as_such() -> None:
    with full_port() as port:
        assert "Connection timed out" in error_of(account(port))


@pytest.mark.parametrize("read", [ALL, UNREAD])
def test_a_port_that_hangs_up_on_tls_is_asked_for_tls_and_not_for_an_account(read: int) -> None:
    with full_port(hangs_up_after=read) as port:
        error = error_of(account(port, "SASL_SSL"))
    assert "does this port speak TLS?" in error
    assert "password" not in error


def test_a_port_that_hangs_up_on_plain_text_may_expect_something_else() -> None:
    with full_port(hangs_up_after=ALL) as port:
        error = error_of(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}"))
    assert error.endswith(
        "expects TLS or an account hangs up too: SHIELDTX_KAFKA_SECURITY_PROTOCOL)"
    )


def test_a_server_that_never_says_a_word_of_tls_is_waited_for_until_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        error = error_of(account(server.getsockname()[1], "SASL_SSL"))
    assert time.monotonic() - began < 20
    assert "timed out (does this port speak TLS?)" in error


def test_a_connection_that_breaks_later_says_nothing_of_accounts() -> None:
    with (
        pytest.raises(BrokerUnavailable) as error,
        account(9092).translated("describing topics"),
    ):
        raise KafkaConnectionError("socket disconnected")
    assert str(error.value).endswith("socket disconnected")
