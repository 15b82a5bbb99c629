"""`python -m benchmarks.upgrade`: how long writers wait while tables in use are upgraded.

The tables of the oldest revision are filled. A reader keeps its transaction open, writers continue,
and the tables are upgraded to the latest revision. The output is the longest wait of a write.
"""

from __future__ import annotations

import argparse
import threading
import time
import uuid
from typing import Final

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from benchmarks.harness.samples import BenchmarkFailed
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.store.schema import Schema

OLDEST: Final = "0001"
WRITERS: Final = 2
LONGEST_WAIT_S: Final = 1.0
"""Maximum wait of a write."""

_OUTBOX: Final = """
    INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, key,
        payload, status, waiting, holds_key, due_at, unconfirmed, created_at, settled_at)
    SELECT gen_random_uuid(), n % 64, 'orders', 't', 't', 'COMMIT', 'INSERT', 'k' || n % 1000,
           repeat('x', 100), 'PROCESSED', false, false, now(), false, now(), now()
    FROM generate_series(1, :rows) AS n"""
_INBOX: Final = """
    INSERT INTO shield_inbox (event_id, consumer_group, source, topic, event_type, tx_kind,
        operation, key, payload, event_time, status, due_at, received_at, settled_at)
    SELECT gen_random_uuid(), 'stock', 'orders', 't', 't', 'COMMIT', 'INSERT', 'k' || n % 1000,
           repeat('x', 100), now(), 'PROCESSED', now(), now(), now()
    FROM generate_series(1, :rows) AS n"""


class Writers:
    """Threads that write an event into both tables repeatedly, and time each write."""

    def __init__(self, engine: Engine, count: int) -> None:
        self._engine = engine
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._write) for _ in range(count)]
        self.waits: list[float] = []
        """Seconds of each write."""

    def start(self) -> None:
        """Start writing."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop writing; an error in a thread shows as too few writes."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        with self._engine.connect() as connection:
            while not self._stopped.is_set():
                began = time.monotonic()
                with connection.begin():
                    connection.execute(text(_OUTBOX), {"rows": 1})
                    connection.execute(text(_INBOX), {"rows": 1})
                self.waits.append(time.monotonic() - began)


def measure(server: EmbeddedPostgres, rows: int, reading_s: float) -> None:
    """Upgrade tables with `rows` rows during a read of `reading_s` seconds, and print the waits."""
    name = f"upgrade_{uuid.uuid4().hex[:8]}"
    server.create_database(name)
    engine = create_engine(server.url(name), poolclass=NullPool)
    schema = Schema(engine)
    schema.upgrade(OLDEST)
    with engine.begin() as connection:
        for statement in (_OUTBOX, _INBOX):
            connection.execute(text(statement), {"rows": rows})
    writers = Writers(engine, WRITERS)
    writers.start()
    reader = engine.connect()
    reader.execute(text("SELECT count(*) FROM shield_outbox, shield_inbox LIMIT 0"))
    timer = threading.Timer(reading_s, reader.close)
    timer.start()
    began = time.monotonic()
    schema.upgrade(notice=lambda line: print(f"{time.monotonic() - began:6.1f} s  {line}"))
    took = time.monotonic() - began
    writers.stop()
    timer.join()
    schema.check()
    longest = max(writers.waits)
    print(f"rows of each table: {rows:,}; a reader of {reading_s:.0f} s; upgrade: {took:.1f} s")
    print(f"writes meanwhile: {len(writers.waits):,}; the longest wait of one: {longest:.3f} s")
    if longest > LONGEST_WAIT_S:
        raise BenchmarkFailed(f"a write waited for {longest:.3f} s, {LONGEST_WAIT_S} s is allowed")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.upgrade")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table")
    parser.add_argument("--reading", type=float, default=10.0, help="seconds of the reader")
    given = parser.parse_args()
    with EmbeddedPostgres() as server:
        measure(server, given.rows, given.reading)


if __name__ == "__main__":
    main()
