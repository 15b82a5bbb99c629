"""`python -m benchmarks.indexes`: what indexes for the reconciliation would save and cost.

Each variant of the outbox takes the same events: written by the server, sent by a relay into
memory. The difference from the present outbox is the cost of the variant for every event; its gain
is the shorter nightly scan of settled rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg
from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from benchmarks.data.events import EVENT_TYPE, SOURCE
from benchmarks.data.fill_outbox import fill, fill_terminal
from benchmarks.harness.samples import BenchmarkFailed
from shieldtx import Settings, ShieldTx
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.relay.relay import Relay
from shieldtx.store.schema import Schema
from shieldtx.testing.memory_broker import MemoryBroker

KEYS: Final = 1_000
WARM_UP: Final = 5_000
"""Events before each measurement."""

_SCAN: Final = """
    SELECT bit_xor(uuid_hash_extended(event_id, hashtextextended(payload, 0)))
    FROM shield_outbox"""
_SCAN_OF_DIGESTS: Final = """
    SELECT bit_xor(uuid_hash_extended(event_id, digest)) FROM shield_outbox"""
_MOVED: Final = """
    SELECT count(*) FROM shield_outbox WHERE settled_at >= now() - interval '1 day'"""
_BY_THE_SERVER: Final = """GENERATED ALWAYS AS (
    (hashtextextended(event_type, hashtextextended(topic, 0)) & -4294967296)
    | (hashtextextended(payload, 0) & 4294967295)) STORED"""
_COVERING: Final = """
    ALTER TABLE shield_outbox DROP CONSTRAINT shield_outbox_pkey,
    ADD PRIMARY KEY (event_id) INCLUDE (digest)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """An outbox with other indexes or columns."""

    title: str
    changes: tuple[str, ...] = ()
    scan: str = _SCAN
    """The statement of a nightly scan."""


VARIANTS: Final = (
    Variant(title="unchanged"),
    Variant(
        title="digest of each row in the primary key, computed by the server",
        changes=(
            f"ALTER TABLE shield_outbox ADD COLUMN digest bigint {_BY_THE_SERVER}",
            _COVERING,
        ),
        scan=_SCAN_OF_DIGESTS,
    ),
    Variant(
        title="empty digest column in the primary key",
        changes=("ALTER TABLE shield_outbox ADD COLUMN digest bigint DEFAULT 0", _COVERING),
        scan=_SCAN_OF_DIGESTS,
    ),
    Variant(title="unchanged, scan of one day only", scan=_MOVED),
    Variant(
        title="no BRIN index on settled_at, scan of one day only",
        changes=("DROP INDEX shield_outbox_settled_idx",),
        scan=_MOVED,
    ),
)


class Outbox:
    """The outbox of a variant, in a database of its own."""

    def __init__(self, server: EmbeddedPostgres, variant: Variant, name: str) -> None:
        server.create_database(name)
        url = server.url(name)
        Schema(create_engine(url, poolclass=NullPool)).upgrade()
        self.variant = variant
        self._connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self._reached = 0
        for change in variant.changes:
            self._connection.execute(change.encode())
        self._settings = Settings(source=SOURCE, database_url=url, relay_wakeup=False)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def rest(self, rows: int) -> None:
        """Fill the outbox with settled rows, and vacuum as autovacuum does."""
        fill_terminal(self._connection, rows, keys=KEYS)
        self._connection.execute("VACUUM (FREEZE, ANALYZE) shield_outbox")

    def scan(self) -> float:
        """Run the nightly scan, and return the seconds."""
        return _seconds(lambda: self._connection.execute(self.variant.scan.encode()))

    def work(self, events: int) -> tuple[float, float]:
        """Return the times to write and to send an event, in microseconds."""
        app = ShieldTx(self._settings, broker=MemoryBroker())
        app.declare(EVENT_TYPE)
        app.broker.topics().create(app.topics(), partitions=8, replication=1)
        relay = app.build_relay()
        self._write(WARM_UP)
        _send(relay, WARM_UP)
        written = _seconds(lambda: self._write(events))
        sent = _seconds(lambda: _send(relay, events))
        relay.close()
        app.close()
        self._connection.execute("VACUUM shield_outbox")
        return written / events * 1e6, sent / events * 1e6

    def _write(self, events: int) -> None:
        begin, self._reached = self._reached, self._reached + events
        fill(self._connection, begin=begin, end=self._reached, keys=KEYS)


def _send(relay: Relay, events: int) -> None:
    sent = 0
    while sent < events:
        done = relay.run_once()
        if not (done.published or done.ahead):
            raise BenchmarkFailed(f"the relay has nothing to send after {sent} events: {done}")
        sent += done.published


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main() -> None:
    """Measure all variants, alternating, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.indexes")
    parser.add_argument("--rows", type=int, default=1_000_000, help="at rest, of each variant")
    parser.add_argument("--events", type=int, default=50_000, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    console = Console()
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with console.status("filling the outboxes") as status, EmbeddedPostgres() as server:
        outboxes = [Outbox(server, one, f"variant_{n}") for n, one in enumerate(VARIANTS)]
        for outbox in outboxes:
            outbox.rest(asked.rows)
        for number in range(asked.rounds):
            status.update(f"round {number + 1} of {asked.rounds}")
            for outbox in outboxes[:: -1 if number % 2 else 1]:
                scan = outbox.scan()
                found[outbox.variant.title].append((scan, *outbox.work(asked.events)))
        for outbox in outboxes:
            outbox.close()
    table = Table(title=f"Beside {asked.rows:,} rows at rest, medians of {asked.rounds} rounds")
    for column in ("outbox", "nightly scan, s", "write, µs/event", "send, µs/event"):
        table.add_column(column, justify="left" if column == "outbox" else "right")
    for title, rounds in found.items():
        scan, written, sent = (statistics.median(values) for values in zip(*rounds, strict=True))
        table.add_row(title, f"{scan:.2f}", f"{written:.1f}", f"{sent:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
