"""Tests that a cluster's start is awaited until its master reports the number of its workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from shieldtx.embedded.free_ports import HOST, free_port
from tests.spark.cluster import alive_workers

ANSWERS = [
    (404, b"not found"),
    (200, b"<!DOCTYPE html><html></html>"),
    (200, b'{"aliveworkers" : 2}'),
]


class StartingMaster(BaseHTTPRequestHandler):
    """Answers like a master that registers its pages one by one."""

    def do_GET(self) -> None:
        status, body = self.server.answers.pop(0)  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the console quiet."""


@pytest.fixture
def page() -> Iterator[int]:
    with HTTPServer((HOST, 0), StartingMaster) as server:
        server.answers = list(ANSWERS)  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_master_that_is_still_starting_is_asked_again(page: int) -> None:
    assert [alive_workers(page) for _ in ANSWERS] == [0, 0, 2]


def test_a_master_that_does_not_listen_yet_is_asked_again() -> None:
    assert alive_workers(free_port()) == 0
