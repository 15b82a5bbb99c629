"""Messages in the streams of Kafka and of PostgreSQL: their beginnings and their subjects."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

Kind = int | str
"""The subject of a message: Kafka's api key, or the first keyword of an SQL statement."""


class Api(IntEnum):
    """Kafka's requests (https://kafka.apache.org/protocol#protocol_api_keys)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22


class NotUnderstood(Exception):
    """The stream does not follow the protocol of the proxy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Bytes of one message; `begins` marks its first ones, where alone `kind` is known."""

    data: bytes
    begins: bool = False
    kind: Kind | None = None


class Scanner(Protocol):
    """Finds the beginnings of messages in a stream."""

    def feed(self, data: bytes) -> list[Piece]:
        """Return the bytes that can be passed on; the first bytes of a message may have to wait."""
        ...


Wire = Callable[[], tuple[Scanner, Scanner]]
"""Makes the scanners of a new connection: of its requests and of its answers."""


# A frame's whole size, whether a message begins with it (a message has one or several), and its
# kind. A bare tuple, because there are hundreds of thousands of them a second.
_Head = tuple[int, bool, Kind | None]


class _Frames:
    """Iterates over frames; `heads` reads the head at a position, None while it is incomplete."""

    def __init__(self, head: Callable[[bytes, int], _Head | None]) -> None:
        self._head = head
        self._waiting = b""
        self._left = 0

    def feed(self, data: bytes) -> list[Piece]:
        data = self._waiting + data
        at = self._left
        starts: list[tuple[int, _Head | None]] = [(0, None)]
        while at < len(data):
            head = self._head(data, at)
            if head is None:
                break
            size, begins, _kind = head
            if begins:
                starts.append((at, head))
            at += size
        self._left = max(0, at - len(data))
        at = min(at, len(data))
        self._waiting = data[at:]
        return list(_pieces(data, starts, at))


def _pieces(data: bytes, starts: list[tuple[int, _Head | None]], end: int) -> Iterator[Piece]:
    ends = [start for start, _ in starts[1:]] + [end]
    for (start, head), stop in zip(starts, ends, strict=True):
        if stop > start:
            kind = head[2] if head else None
            yield Piece(data=data[start:stop], begins=head is not None, kind=kind)


_REQUEST: Final = struct.Struct(">ihhi")  # size, api key, api version, correlation id
_ANSWER: Final = struct.Struct(">ii")  # size, correlation id
_SIZE: Final = 4


def kafka() -> tuple[Scanner, Scanner]:
    """Follow a connection of Kafka: an answer has the kind of the request with its number."""
    asked: dict[int, int] = {}

    def request(data: bytes, at: int) -> _Head | None:
        if len(data) - at < _REQUEST.size:
            return None
        size, api, _version, number = _REQUEST.unpack_from(data, at)
        _check(size >= _REQUEST.size - _SIZE, "request", data, at)
        asked[number] = api
        return _SIZE + size, True, api

    def answer(data: bytes, at: int) -> _Head | None:
        if len(data) - at < _ANSWER.size:
            return None
        size, number = _ANSWER.unpack_from(data, at)
        _check(size >= _ANSWER.size - _SIZE, "answer", data, at)
        return _SIZE + size, True, asked.pop(number, None)

    return _Frames(request), _Frames(answer)


_STARTUP: Final = struct.Struct(">iI")  # size, code
_TYPED: Final = struct.Struct(">ci")  # type, size without the type
_ASK_ENCRYPTION: Final = {80877103, 80877104}
_CANCEL: Final = 80877102
_WORD: Final = 96  # bytes with the first keyword of a statement, and the statement's name before it


class _Postgres:
    """A connection of PostgreSQL (https://www.postgresql.org/docs/current/protocol.html).

    A request is a Query, or everything from Parse to Sync. An answer begins with a CommandComplete,
    whose tag names the completed command, and ends with the next ReadyForQuery.
    """

    def __init__(self) -> None:
        self._is_typed = False
        self._bare_answers = 0
        self._request_ends = self._answer_ends = True

    def request(self, data: bytes, at: int) -> _Head | None:
        if not self._is_typed:
            return self._opening(data, at)
        found = _typed(data, at)
        if found is None:
            return None
        letter, size, body = found
        begins, self._request_ends = self._request_ends, letter in b"QS"
        if letter == b"P":
            return size, True, _first_word(body.partition(b"\0")[2])
        if letter == b"Q":
            return size, True, _first_word(body)
        return size, begins, None

    def answer(self, data: bytes, at: int) -> _Head | None:
        if self._bare_answers:
            self._bare_answers -= 1
            _check(data[at : at + 1] == b"N", "answer, encrypted", data, at)
            return 1, True, None
        found = _typed(data, at)
        if found is None:
            return None
        letter, size, body = found
        begins, self._answer_ends = self._answer_ends, letter == b"Z"
        if letter == b"C":
            return size, True, _first_word(body)
        return size, begins, None

    def _opening(self, data: bytes, at: int) -> _Head | None:
        """Read a message from before the login, which has no type letter."""
        if len(data) - at < _STARTUP.size:
            return None
        size, code = _STARTUP.unpack_from(data, at)
        _check(size >= _STARTUP.size, "opening", data, at)
        if code in _ASK_ENCRYPTION:
            self._bare_answers += 1
        elif code != _CANCEL:
            self._is_typed = True
        return size, True, None


def postgres() -> tuple[Scanner, Scanner]:
    """Follow a connection of PostgreSQL, which must not be encrypted."""
    connection = _Postgres()
    return _Frames(connection.request), _Frames(connection.answer)


def _typed(data: bytes, at: int) -> tuple[bytes, int, bytes] | None:
    """Read a message's letter, its whole size and, where statements are named, their beginning."""
    if len(data) - at < _TYPED.size:
        return None
    letter, length = _TYPED.unpack_from(data, at)
    _check(length >= _SIZE and letter.isalnum(), "message", data, at)
    size = 1 + length
    if letter not in b"CPQ":
        return letter, size, b""
    wanted = min(size, _WORD)
    if len(data) - at < wanted:
        return None
    return letter, size, data[at + _TYPED.size : at + wanted]


def _first_word(statement: bytes) -> str:
    words = statement.partition(b"\0")[0].replace(b";", b" ").split()
    return words[0].decode("ascii", "replace").upper() if words else ""


def _check(holds: bool, what: str, data: bytes, at: int) -> None:
    if not holds:
        raise NotUnderstood(f"no {what} of the expected protocol: {data[at : at + 16]!r}")
