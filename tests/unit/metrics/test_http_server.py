"""The HTTP endpoints of a worker, asked over real sockets."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from shieldtx.errors import ConfigurationError
from shieldtx.metrics import http_server
from shieldtx.metrics.http_server import endpoints
from tests.conftest import Eventually
from tests.support.log_records import logged

Answer = tuple[int, str]


class Worker:
    """A worker whose state a test sets, with one metric."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.passes = Counter("passes", "Passes.", registry=self.registry)
        self.dead = ""
        self.waiting = ""

    @contextmanager
    def served(self, address: str = "127.0.0.1:0") -> Iterator[str]:
        with endpoints(
            address,
            metrics=self.registry,
            why_not_live=lambda: self.dead,
            why_not_ready=lambda: self.waiting,
        ) as bound:
            yield bound


def ask(address: str, path: str, method: str = "GET") -> Answer:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_metrics_are_shown_as_they_are_now(worker: Worker) -> None:
    with worker.served() as address:
        for count in (1, 2):
            worker.passes.inc()
            status, text = ask(address, "/metrics")
            families = {family.name: family for family in text_string_to_metric_families(text)}
            assert status == 200
            assert families["passes"].samples[0].value == count


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_answer_for_themselves(worker: Worker, path: str) -> None:
    with worker.served() as address:
        assert ask(address, path) == (200, "ok\n")
        worker.dead = "relay: a pass has hung"
        worker.waiting = "relay: no success yet"
        expected = {"/livez": worker.dead, "/readyz": worker.waiting}[path]
        assert ask(address, path) == (503, f"{expected}\n")


def test_prometheus_gets_the_format_that_it_asks_for(worker: Worker) -> None:
    with worker.served() as address:
        request = urllib.request.Request(f"http://{address}/metrics")
        request.add_header("Accept", "application/openmetrics-text; version=1.0.0")
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            assert response.headers["Content-Type"].startswith("application/openmetrics-text")
            assert response.read().endswith(b"# EOF\n")


def test_head_has_no_body(worker: Worker) -> None:
    with worker.served() as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 ")
    assert body == b""


def test_clients_above_the_limit_are_disconnected(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 2)
    with worker.served() as address, ExitStack() as clients:
        host, _, port = address.rpartition(":")
        for _ in range(2):
            clients.enter_context(socket.create_connection((host, int(port)), timeout=10))
        with socket.create_connection((host, int(port)), timeout=10) as third:
            assert third.recv(1) == b""
        clients.close()

        def is_free() -> bool:
            with suppress(OSError, http.client.HTTPException):
                return ask(address, "/livez") == (200, "ok\n")
            return False

        eventually(is_free, "their threads end")


def test_thread_that_cannot_start_takes_no_place(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, own_log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 2)
    start = ThreadingMixIn.process_request

    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with worker.served() as address:
        monkeypatch.setattr(ThreadingMixIn, "process_request", fail)
        for _ in range(3):
            with pytest.raises((OSError, http.client.HTTPException)):
                ask(address, "/livez")
        monkeypatch.setattr(ThreadingMixIn, "process_request", start)
        assert ask(address, "/livez") == (200, "ok\n")
    assert len(logged(own_log.records, "http_request_failed")) == 3


@pytest.mark.parametrize("path", ["http://[/livez", "/livez%", "/livez/.."])
def test_odd_paths_are_answered(worker: Worker, path: str) -> None:
    with worker.served() as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            assert client.recv(12)[-3:] == b"404"


@pytest.mark.parametrize("version", ["abc", '"1.0.0"', "x.y"])
def test_unknown_version_of_a_format_gets_a_known_one(worker: Worker, version: str) -> None:
    with worker.served() as address:
        for kind in ("application/openmetrics-text", "text/plain"):
            request = urllib.request.Request(f"http://{address}/metrics")
            request.add_header("Accept", f"{kind};version={version}")
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
                assert b"passes_total" in response.read()


def test_other_requests_are_refused(worker: Worker) -> None:
    with worker.served() as address:
        status, text = ask(address, "/")
        assert (status, text) == (404, "nothing here; there are /metrics, /livez, /readyz\n")
        assert ask(address, "/metrics", "POST")[0] == 501


def test_address_in_use_names_the_setting(worker: Worker) -> None:
    with worker.served() as address, pytest.raises(ConfigurationError) as refused:
        worker.served(address).__enter__()
    assert str(refused.value).startswith(f"SHIELDTX_HTTP: cannot listen at {address}: Address")


def test_nothing_answers_after_the_block(worker: Worker) -> None:
    with worker.served() as address:
        assert ask(address, "/livez")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(address, "/livez")


def test_slow_client_delays_no_other(worker: Worker) -> None:
    with worker.served() as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"GET /livez HT")
            assert ask(address, "/livez") == (200, "ok\n")


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_ipv6_address_is_in_brackets(worker: Worker) -> None:
    with worker.served("[::1]:0") as address:
        assert address.startswith("[::1]:")
        assert ask(address, "/livez") == (200, "ok\n")


def test_failing_metric_is_logged(worker: Worker, own_log: pytest.LogCaptureFixture) -> None:
    class Broken:
        def collect(self) -> list[object]:
            raise LookupError("no such shard")

    worker.registry.register(Broken())  # type: ignore[arg-type]
    with worker.served() as address:
        assert ask(address, "/metrics") == (500, "see the log\n")
        assert ask(address, "/livez")[0] == 200
    (entry,) = logged(own_log.records, "http_endpoint_failed")
    assert entry["path"] == "/metrics"


def test_client_that_sends_no_whole_request_is_disconnected(
    worker: Worker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server._Handler, "timeout", 0.1)
    with worker.served() as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as slow:
            slow.sendall(b"GET /livez HT")
            assert slow.recv(1) == b""
    assert capfd.readouterr().err == ""


def test_client_that_goes_away_is_logged_for_debugging_only(
    worker: Worker,
    own_log: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    eventually: Eventually,
) -> None:
    has_gone, is_asked = threading.Event(), threading.Event()

    class Slow:
        def collect(self) -> list[object]:
            is_asked.set()
            has_gone.wait(10)
            return []

    own_log.set_level("DEBUG")
    with worker.served() as address:
        host, _, port = address.rpartition(":")
        # Registered last: the registry asks it once for its names.
        worker.registry.register(Slow())  # type: ignore[arg-type]
        is_asked.clear()
        client = socket.create_connection((host, int(port)), timeout=10)
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert is_asked.wait(10)
        reset = struct.pack("ii", 1, 0)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        client.close()
        has_gone.set()
        eventually(lambda: logged(own_log.records, "http_request_broken_off"), "it is logged")
    assert capfd.readouterr().err == ""
