"""Outboxes full of events: written by the server, with the rows that `outbox.add` makes."""

from __future__ import annotations

import threading
from typing import Any, Final

from psycopg import Connection
from sqlalchemy.orm import Session

from benchmarks.data.events import EVENT_TYPE, NOTE, SOURCE, payload_of, position_of
from benchmarks.harness.samples import BenchmarkFailed
from benchmarks.harness.servers import RunEnvironment
from shieldtx import Event, Settings, ShieldTx

CHUNK: Final = 250_000
_MADE_APART: Final = {"event_id", "seq", "due_at", "created_at"}

_COLUMNS: Final = """
    event_id, shard, source, topic, event_type, tx_kind, operation, key, payload, status, attempts,
    waiting, holds_key, due_at, unconfirmed, created_at
"""
# crc32 and uuidv7 are functions of PostgreSQL 18; shards as in `shieldtx.domain.events.shard_of`.
_FRESH: Final = f"""
INSERT INTO shield_outbox ({_COLUMNS})
SELECT uuidv7(), crc32(convert_to(key, 'UTF8')) %% 64, %(source)s, %(type)s, %(type)s, 'COMMIT',
       'INSERT', key, '{{"n":' || n || ',"key":"' || key || '","note":"' || %(note)s || '"}}',
       'INIT', 0, false, false, now(), false, now()
FROM (SELECT 'key-' || i %% %(keys)s AS key, i / %(keys)s + 1 AS n
      FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 1) AS i)
"""  # noqa: S608  no values in it
# Every other row waits for a retry and blocks its key; the others have their own delay.
_WAITING: Final = f"""
INSERT INTO shield_outbox ({_COLUMNS}, last_error)
SELECT uuidv7(), crc32(convert_to(key, 'UTF8')) %% 64, %(source)s, %(type)s, %(type)s, 'COMMIT',
       'INSERT', key, '{{"n":0,"key":"' || key || '","note":"' || %(note)s || '"}}', 'INIT',
       retried::int, true, retried, now() + interval '1 hour' + i * interval '1 ms', false, now(),
       CASE WHEN retried THEN 'the broker was away' END
FROM (SELECT 'waiting-' || i / 4 AS key, i %% 2 = 0 AS retried, i
      FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 1) AS i)
"""  # noqa: S608
# The first row of each key waits for its retry, and blocks all others.
_BEHIND: Final = f"""
INSERT INTO shield_outbox ({_COLUMNS}, last_error)
SELECT uuidv7(), crc32(convert_to(key, 'UTF8')) %% 64, %(source)s, %(type)s, %(type)s, 'COMMIT',
       'INSERT', key, '{{"n":0,"key":"' || key || '","note":"' || %(note)s || '"}}', 'INIT',
       retried::int, retried, retried, now() + retried::int * interval '1 hour', false, now(),
       CASE WHEN retried THEN 'the topic is missing' END
FROM (SELECT 'held-' || i %% %(keys)s AS key, i < %(keys)s AS retried
      FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 1) AS i)
"""  # noqa: S608
# Due one after the other from an hour to 30 days from now, for any number of rows.
_DELAYED: Final = f"""
INSERT INTO shield_outbox ({_COLUMNS})
SELECT uuidv7(), crc32(convert_to(key, 'UTF8')) %% 64, %(source)s, %(type)s, %(type)s, 'COMMIT',
       'INSERT', key, '{{"n":0,"key":"' || key || '","note":"' || %(note)s || '"}}', 'INIT', 0,
       true, false, now() + interval '1 hour' + i * (interval '30 days' / %(keys)s), false, now()
FROM (SELECT 'delayed-' || i AS key, i
      FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 1) AS i)
"""  # noqa: S608
_HALF: Final = f"""
INSERT INTO shield_outbox ({_COLUMNS}, checks, check_at)
SELECT uuidv7(), crc32(convert_to(key, 'UTF8')) %% 64, %(source)s, %(type)s, %(type)s, 'COMMIT',
       'INSERT', key, '{{"n":0,"key":"' || key || '","note":"' || %(note)s || '"}}', 'HALF', 0,
       true, false, now() + interval '72 hours', false, now(), 0,
       now() + %(keys)s * interval '1 hour'
FROM (SELECT 'half-' || i AS key
      FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 1) AS i)
"""  # noqa: S608
_TERMINAL: Final = f"""
INSERT INTO shield_outbox ({_COLUMNS}, settled_at)
SELECT uuidv7('-10 days'), crc32(convert_to(key, 'UTF8')) %% 64, %(source)s, %(type)s, %(type)s,
       'COMMIT', 'INSERT', key, '{{"n":0,"key":"' || key || '","note":"' || %(note)s || '"}}',
       'PROCESSED', 1, false, false, now() - interval '10 days', false,
       now() - interval '10 days', now() - interval '10 days'
FROM (SELECT 'old-' || i %% %(keys)s AS key
      FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 1) AS i)
"""  # noqa: S608


def fill(
    connection: Connection,
    *,
    begin: int,
    end: int,
    keys: int,
    note: str = NOTE,
    chunk: int = CHUNK,
) -> None:
    """Write the events from one index of the sequence to another."""
    _insert(connection, _FRESH, begin=begin, end=end, keys=keys, note=note, chunk=chunk)


def fill_waiting(connection: Connection, rows: int) -> None:
    """Write rows of other keys that are due in an hour: in retry back-off, or delayed by choice."""
    _insert(connection, _WAITING, begin=0, end=rows, keys=1)


def fill_behind(connection: Connection, rows: int, *, keys: int) -> None:
    """Write rows of other keys, each blocked by a row that is retried in an hour."""
    _insert(connection, _BEHIND, begin=0, end=keys + rows, keys=keys)


def fill_delayed(connection: Connection, rows: int) -> None:
    """Write rows with a chosen delay each, the first of which are due in an hour."""
    _insert(connection, _DELAYED, begin=0, end=rows, keys=rows)


def fill_half(connection: Connection, rows: int, *, is_due: bool) -> None:
    """Write half messages, whose first check-back is due now or in an hour."""
    _insert(connection, _HALF, begin=0, end=rows, keys=0 if is_due else 1)


def fill_terminal(connection: Connection, rows: int, *, keys: int) -> None:
    """Write rows that were sent ten days ago, so that their retention is over."""
    _insert(connection, _TERMINAL, begin=0, end=rows, keys=keys)


def _insert(
    connection: Connection,
    statement: str,
    *,
    begin: int,
    end: int,
    keys: int,
    note: str = NOTE,
    chunk: int = CHUNK,
) -> None:
    for start in range(begin, end, chunk):
        connection.execute(
            statement,
            {
                "source": SOURCE,
                "type": EVENT_TYPE,
                "note": note,
                "keys": keys,
                "begin": start,
                "end": min(start + chunk, end),
            },
        )


class Feeder:
    """Keeps the backlog of a running relay constant: writes an event for each event sent."""

    def __init__(self, place: RunEnvironment, *, begin: int, keys: int, chunk: int = 5_000) -> None:
        self.reached = begin
        """Number of events written so far."""
        self._keys = keys
        self._chunk = chunk
        self._done = 0
        self._fed = 0
        self._news = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None
        self._connection = place.connect()
        self._thread = threading.Thread(target=self._feed, name="feed", daemon=True)
        self._thread.start()

    def done(self, count: int) -> None:
        """Set how many events the relay has sent; raise the error of the writing thread, if any."""
        if self._failure is not None:
            raise BenchmarkFailed(f"the backlog cannot be kept up: {self._failure}")
        with self._news:
            self._done = count
            self._news.notify()

    def close(self) -> None:
        """Stop writing."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()
        self._connection.close()

    def _feed(self) -> None:
        try:
            while self._await_demand():
                end = self.reached + self._chunk
                fill(self._connection, begin=self.reached, end=end, keys=self._keys)
                self.reached = end
                self._fed += self._chunk
        except BaseException as error:  # noqa: BLE001  raised in the other thread
            self._failure = error

    def _await_demand(self) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._closed or self._done - self._fed >= self._chunk)
            return not self._closed


def check_likeness(place: RunEnvironment) -> None:
    """Raise BenchmarkFailed if `outbox.add` would write other rows than the server does here."""
    shield = ShieldTx(Settings(source=SOURCE, database_url=place.url, relay_wakeup=False))
    shield.declare(EVENT_TYPE)
    position = position_of(4_711, 1_000)
    with Session(shield.engine) as session, session.begin():
        shield.outbox.add(
            session, Event(type=EVENT_TYPE, key=position.key, payload=payload_of(position))
        )
    shield.close()
    with place.connect() as connection:
        fill(connection, begin=4_711, end=4_712, keys=1_000)
        cursor = connection.execute("SELECT * FROM shield_outbox ORDER BY seq")
        names = [column.name for column in cursor.description or ()]
        ours, servers = (dict(zip(names, row, strict=True)) for row in cursor)
        connection.execute("TRUNCATE shield_outbox")
    differing = {n: (ours[n], servers[n]) for n in names if n not in _MADE_APART}
    differing = {n: pair for n, pair in differing.items() if pair[0] != pair[1]}
    if differing:
        raise BenchmarkFailed(f"the rows written here are not those of outbox.add: {differing}")


def waits(connection: Connection) -> int:
    """Return how many events are not settled."""
    row: Any = connection.execute(
        "SELECT count(*) FROM shield_outbox WHERE settled_at IS NULL"
    ).fetchone()
    return int(row[0])
