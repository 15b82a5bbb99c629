"""Tests of the beginnings of messages that the fault proxy finds."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verification.faults.wire import Api, Kind, Scanner, kafka, postgres


def typed(letter: bytes, body: bytes) -> bytes:
    return letter + struct.pack(">i", 4 + len(body)) + body


def kafka_request(api: Api, number: int, body: bytes) -> bytes:
    request = struct.pack(">hhi", api, 9, number) + body
    return struct.pack(">i", len(request)) + request


def kafka_answer(number: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), number) + body


POSTGRES_REQUESTS = [
    (struct.pack(">iI", 8, 80877103), None),  # an SSLRequest
    (struct.pack(">iI", 14, 196608) + b"user\0\0", None),
    (typed(b"Q", b"begin\0"), "BEGIN"),
    (
        typed(b"P", b"\0INSERT INTO t VALUES ($1)\0\0\0")
        + typed(b"B", bytes(40))
        + typed(b"E", bytes(5))
        + typed(b"S", b""),
        "INSERT",
    ),
    (typed(b"Q", b"COMMIT\0"), "COMMIT"),
    (typed(b"X", b""), None),
]
POSTGRES_ANSWERS = [
    (b"N", None),
    (typed(b"R", bytes(4)) + typed(b"Z", b"I"), None),
    (typed(b"C", b"BEGIN\0") + typed(b"Z", b"T"), "BEGIN"),
    (typed(b"1", b"") + typed(b"2", b"") + typed(b"n", b""), None),
    (typed(b"C", b"INSERT 0 1\0") + typed(b"Z", b"T"), "INSERT"),
    (typed(b"C", b"COMMIT\0") + typed(b"Z", b"I"), "COMMIT"),
    (typed(b"A", b"a notification, later on"), None),
]
KAFKA_REQUESTS = [
    (kafka_request(Api.API_VERSIONS, 1, b""), Api.API_VERSIONS),
    (kafka_request(Api.PRODUCE, 2, b"without an answer"), Api.PRODUCE),
    (kafka_request(Api.FETCH, 3, bytes(300)), Api.FETCH),
    (kafka_request(Api.PRODUCE, 4, bytes(300)), Api.PRODUCE),
]
KAFKA_ANSWERS = [
    (kafka_answer(1, bytes(30)), Api.API_VERSIONS),
    (kafka_answer(3, b""), Api.FETCH),
    (kafka_answer(4, bytes(300)), Api.PRODUCE),
]
CONVERSATIONS: dict[str, Any] = {
    "kafka": (kafka, KAFKA_REQUESTS, KAFKA_ANSWERS),
    "postgres": (postgres, POSTGRES_REQUESTS, POSTGRES_ANSWERS),
}


@pytest.mark.parametrize("protocol", CONVERSATIONS)
@given(cuts=st.lists(st.integers(0, 700), max_size=8), byte_by_byte=st.booleans())
def test_messages_are_separated_wherever_the_stream_is_cut(
    protocol: str, cuts: list[int], byte_by_byte: bool
) -> None:
    wire, requests, answers = CONVERSATIONS[protocol]
    for scanner, said in zip(wire(), (requests, answers), strict=True):
        stream = b"".join(message for message, _ in said)
        places = sorted({0, *(range(len(stream)) if byte_by_byte else cuts), len(stream)})
        chunks = [stream[a:b] for a, b in pairwise(places)]
        assert messages(scanner, chunks) == said


def messages(scanner: Scanner, chunks: list[bytes]) -> list[tuple[bytes, Kind | None]]:
    found: list[tuple[bytes, Kind | None]] = []
    for chunk in chunks:
        for piece in scanner.feed(chunk):
            if piece.begins:
                found.append((b"", piece.kind))
            message, kind = found[-1]
            found[-1] = message + piece.data, kind
    return found
