"""What the error of a failed connection names: why the attempts failed, not that time ran out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kafka import KafkaAdminClient

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.errors import BrokerUnavailable


@pytest.fixture(params=["closes", "resets"])
def hanging_up_once(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port that hangs up on the first who connects, and lets nobody else connect."""
    read = {"closes": 1_000, "resets": 1}[request.param]  # with bytes unread, it is a reset
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as waiting:

        def serve() -> None:
            first, _ = server.accept()
            with first:
                first.recv(read)
                # Nobody accepts them, so that the next one's packets find no room.
                for _ in range(2):
                    client = waiting.enter_context(socket.socket())
                    client.setblocking(False)
                    client.connect_ex(server.getsockname())

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_an_attempt_that_the_deadline_cuts_off_does_not_hide_why_the_others_failed(
    hanging_up_once: int,
) -> None:
    account = KafkaConnection(
        bootstrap_servers=f"127.0.0.1:{hanging_up_once}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="shop",
        sasl_password="x",
    )
    with pytest.raises(BrokerUnavailable, match="check username and password"):
        account.open(KafkaAdminClient, within=0.5)
