"""Tests of the fault proxy itself: a proof by faults that never strike would prove nothing."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from shieldtx.embedded.free_ports import HOST, accepts_connections, free_port
from tests.verification.faults.effects import Latency
from tests.verification.faults.proxy import TO_CLIENT, TO_SERVER, Api, FaultProxy, Wire, kafka

MEGABYTE = 1_000_000
LEAST_RATE = 50 * MEGABYTE
_TCP_INFO_DATA_SEGMENTS_IN = 152  # offset in struct tcp_info, <linux/tcp.h>


class Echo:
    """A server that echoes its input, and records it."""

    def __init__(self) -> None:
        self.got = b""
        self.ends: list[str] = []
        self.connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        # Only a connection's own thread closes it: recv() must not meet a reused descriptor.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)
        self._listener.close()
        for connection in self.connections:
            with suppress(OSError):  # this one has ended already
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                thread = threading.Thread(target=self._answer, args=(connection,), daemon=True)
                self.connections.append(connection)  # before its first answer arrives
                self._threads.append(thread)
                thread.start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65_536):
                    self.got += data
                    connection.sendall(data)
                self.ends.append("closed")
            except (ConnectionResetError, BrokenPipeError):
                self.ends.append("reset")


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Callable[[], socket.socket]]:
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection((HOST, proxy.port), timeout=10))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


Connect = Callable[[], socket.socket]


def receive(client: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (data := client.recv(size - len(got))):
        got += data
    return got


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return receive(client, len(data))


def assert_silent(client: socket.socket) -> None:
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(10)


def test_bytes_and_ends_go_through_unchanged_and_are_counted(
    proxy: FaultProxy, connect: Connect, echo: Echo, eventually: Callable[..., None]
) -> None:
    sent = random.Random(1).randbytes(3 * MEGABYTE)
    client, got = connect(), bytearray()
    reader = threading.Thread(target=lambda: got.extend(receive(client, len(sent) + 1)))
    reader.start()
    client.sendall(sent)
    client.shutdown(socket.SHUT_WR)
    reader.join(20)
    assert bytes(got) == sent == echo.got
    assert echo.ends == ["closed"]
    eventually(lambda: proxy.open_connections == 0, "the proxy keeps no closed connection")
    assert proxy.tally.connections == 1
    assert proxy.tally.passed == {TO_SERVER: len(sent), TO_CLIENT: len(sent)}
    assert proxy.tally.vanished == {TO_SERVER: 0, TO_CLIENT: 0}


def test_an_end_by_rst_goes_through_as_one(
    connect: Connect, echo: Echo, eventually: Callable[..., None]
) -> None:
    client = connect()
    ask(client, b"ping")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    eventually(lambda: echo.ends == ["reset"], "the server notices the reset")


def test_what_is_on_concerns_open_connections_until_it_heals(
    proxy: FaultProxy, connect: Connect
) -> None:
    client = connect()
    ask(client, b"before")
    with proxy.latency(0.3) as late:
        began = time.monotonic()
        assert ask(client, b"there and back") == b"there and back"
        assert time.monotonic() - began >= 0.6
        assert late.struck == 2
    began = time.monotonic()
    ask(client, b"healed")
    assert time.monotonic() - began < 0.6


def test_latency_costs_no_throughput_and_keeps_the_order(
    proxy: FaultProxy, connect: Connect
) -> None:
    sent = random.Random(2).randbytes(5 * MEGABYTE)
    client = connect()
    proxy.latency(0.2, jitter=0.1, seed=7, to=TO_CLIENT)
    began = time.monotonic()
    threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
    assert receive(client, len(sent)) == sent
    assert 0.2 <= time.monotonic() - began < 4.0


def test_a_seed_gives_the_same_jitter_again() -> None:
    def draws(seed: int) -> list[float]:
        latency = Latency(seconds=1, jitter=0.5, chance=random.Random(seed))
        return [latency.draw() for _ in range(20)]

    assert draws(1) == draws(1) != draws(2)
    assert all(1 <= delay <= 1.5 for delay in draws(3))


def test_cut_closes_and_refuses_connections_until_it_heals(
    proxy: FaultProxy, connect: Connect, echo: Echo, eventually: Callable[..., None]
) -> None:
    client = connect()
    ask(client, b"ping")
    cut = proxy.cut()
    assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        connect()
    eventually(lambda: echo.ends == ["closed"], "the server sees the end too")
    assert cut.struck == proxy.tally.cuts == 1
    cut.heal()
    cut.heal()  # a second call has no effect
    assert ask(connect(), b"pong") == b"pong"


def test_a_black_hole_takes_everything_and_closes_nothing(
    proxy: FaultProxy, connect: Connect, echo: Echo
) -> None:
    early = connect()
    ask(early, b"ping")
    hole = proxy.black_hole()
    late = connect()
    early.sendall(b"lost")
    late.sendall(b"lost too")
    assert_silent(early)
    assert_silent(late)
    hole.until_struck(5, times=2)
    assert echo.got == b"ping"
    assert proxy.tally.vanished == {TO_SERVER: len(b"lostlost too"), TO_CLIENT: 0}
    hole.heal()
    for client in (early, late):  # a stream with missing bytes can only end
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert ask(connect(), b"new") == b"new"


def test_connections_that_were_silent_outlive_a_black_hole(
    proxy: FaultProxy, connect: Connect
) -> None:
    client = connect()
    ask(client, b"ping")
    with proxy.black_hole():
        assert_silent(client)
    assert ask(client, b"pong") == b"pong"


def test_a_black_hole_of_one_way_takes_the_answers_alone(
    proxy: FaultProxy, connect: Connect, echo: Echo, eventually: Callable[..., None]
) -> None:
    client = connect()
    ask(client, b"ping")
    with proxy.black_hole(to=TO_CLIENT) as hole:
        client.sendall(b"asked")
        hole.until_struck(5)
        assert echo.got == b"pingasked"
        assert_silent(client)
        echo.connections[0].shutdown(socket.SHUT_RDWR)
        assert_silent(client)  # nor does it notice that the server has gone
        client.sendall(b"still talking")
        assert_silent(client)
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_black_hole_hides_that_no_server_listens(proxy: FaultProxy, connect: Connect) -> None:
    proxy.retarget(free_port())
    with proxy.black_hole(to=TO_CLIENT) as hole:
        client = connect()
        hole.until_struck(5)
        assert_silent(client)
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_what_is_held_arrives_when_the_fault_heals(
    proxy: FaultProxy, connect: Connect, echo: Echo
) -> None:
    client = connect()
    ask(client, b"ping")
    with proxy.hold(to=TO_SERVER) as hold:
        client.sendall(b"late, but whole")
        hold.until_struck(5)
        assert_silent(client)
        assert echo.got == b"ping"
    assert receive(client, 15) == b"late, but whole"


@pytest.mark.parametrize("size", [1, 1_000, 300_000])
def test_a_reset_strikes_once_and_at_its_byte(
    proxy: FaultProxy, connect: Connect, echo: Echo, size: int, eventually: Callable[..., None]
) -> None:
    client = connect()
    ask(client, b"ping")
    fault = proxy.reset_after(size)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012 - either may raise
        client.sendall(bytes(size + 500_000))
        receive(client, size + 500_000)
    eventually(lambda: echo.ends == ["reset"], "the server notices too")
    assert len(echo.got) <= len(b"ping") + size
    assert proxy.tally.passed[TO_SERVER] == len(b"ping") + size
    assert fault.struck == proxy.tally.resets == 1
    assert ask(connect(), b"pong" * size) == b"pong" * size


def test_slices_arrive_one_by_one(proxy: FaultProxy, connect: Connect, echo: Echo) -> None:
    client = connect()
    sent = random.Random(3).randbytes(500)
    with proxy.slices(to=TO_SERVER) as slices:
        assert ask(client, sent) == sent
    info = echo.connections[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (segments,) = struct.unpack_from("I", info, _TCP_INFO_DATA_SEGMENTS_IN)
    # The kernel joins segments that wait for an acknowledgement; unsliced, all of it is one
    # segment.
    assert segments > 10
    assert slices.struck >= 1


def test_clients_of_an_unreachable_server_are_reset(
    echo: Echo, eventually: Callable[..., None]
) -> None:
    with FaultProxy(free_port()) as proxy:
        address = HOST, proxy.port
        # The reset may arrive while the client still checks its connection.
        with pytest.raises(ConnectionResetError), socket.create_connection(address, 10) as client:
            client.recv(1)
        proxy.retarget(echo.port)
        with socket.create_connection(address, 10) as client:
            assert ask(client, b"ping") == b"ping"
    assert not accepts_connections(proxy.port)


def test_all_faults_are_waited_for_and_healed_together(proxy: FaultProxy, connect: Connect) -> None:
    late, hole = proxy.latency(0.01, to=TO_SERVER), proxy.black_hole(to=TO_CLIENT)
    client = connect()
    with pytest.raises(TimeoutError, match=r"Latency.* 0 times; BlackHole\(\) 0 times"):
        proxy.until_struck(0.1)
    client.sendall(b"ping")
    proxy.until_struck(5)
    proxy.heal()
    assert late.struck == hole.struck == 1
    assert ask(connect(), b"pong") == b"pong"
    proxy.until_struck(0)


def test_messages_can_only_be_lost_where_the_protocol_is_known(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="speaks=kafka or postgres"):
        proxy.lose_answer(Api.PRODUCE)


def test_a_stream_of_another_protocol_is_an_error_of_the_test(echo: Echo) -> None:
    proxy = FaultProxy(echo.port, kafka)
    with socket.create_connection((HOST, proxy.port), timeout=10) as client:
        client.sendall(b"\xff" * 20)
        assert client.recv(1) == b""
    with pytest.raises(ExceptionGroup) as raised:
        proxy.close()
    assert "no request of the expected protocol" in str(raised.value.exceptions[0])


@pytest.mark.parametrize("speaks", [None, kafka], ids=["bytes", "messages"])
def test_fifty_megabytes_a_second_go_through(speaks: Wire | None) -> None:
    """Measures the best of three runs, because the machine may be busy."""
    frame = struct.pack(">ihhi", 16_384 - 4, Api.FETCH, 0, 1) + bytes(16_384 - 12)
    sent = 100 * MEGABYTE // len(frame)
    with (
        socket.create_server((HOST, 0)) as listener,
        FaultProxy(listener.getsockname()[1], speaks) as proxy,
    ):
        best = max(_rate(listener, proxy, frame, sent) for _ in range(3))
    assert best >= LEAST_RATE, f"{best / MEGABYTE:.0f} MB/s"


def _rate(listener: socket.socket, proxy: FaultProxy, frame: bytes, count: int) -> float:
    with socket.create_connection((HOST, proxy.port), timeout=30) as client:
        server, _ = listener.accept()
        with server:
            began = time.monotonic()
            sender = threading.Thread(target=client.sendall, args=(frame * count,), daemon=True)
            sender.start()
            left = len(frame) * count
            while left:
                left -= len(server.recv(1_048_576))
            return len(frame) * count / (time.monotonic() - began)
