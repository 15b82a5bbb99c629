"""The progress of the orders, read from the two databases while the services run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, create_engine, text

DISCONNECTED_S = 10.0
"""How long PostgreSQL may take to end the connections of a process that was killed."""
_POLL_S = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Counts of orders by their state."""

    written: int = 0
    published: int = 0
    applied: int = 0
    """Reserved."""
    refused: int = 0
    """Given up by the stock service after all attempts."""
    compensated: int = 0
    """Cancelled and refunded."""
    open_rows: int = 0
    """Rows of shieldtx that are not settled."""

    @property
    def ended(self) -> int:
        """Orders with a known outcome."""
        return self.applied + self.compensated

    @property
    def lag(self) -> int:
        """Orders in progress."""
        return self.written - self.ended


class Watch:
    """Reads the databases of both services, from outside."""

    def __init__(self, orders: Connection, stock: Connection) -> None:
        self.orders = orders
        self.stock = stock

    def progress(self) -> Progress:
        """Count the orders."""
        here, there = self.orders.execute(_ORDERS).one(), self.stock.execute(_STOCK).one()
        return Progress(
            written=here.written,
            published=here.published,
            applied=there.applied,
            refused=there.refused,
            compensated=here.compensated,
            open_rows=here.open_rows + there.open_rows,
        )

    def shards(self) -> Mapping[str, int]:
        """Return how many shards of the orders' outbox each active relay owns."""
        return {row.owner: row.shards for row in self.orders.execute(_SHARDS)}

    @contextmanager
    def claims_held(self, pid: int) -> Iterator[frozenset[int]]:
        """Lock the events that a relay, named by its process id, has claimed and not settled.

        Yields their baskets. The relay sends them, but it cannot settle them within the block.
        """
        engine = self.orders.engine.execution_options(isolation_level="READ COMMITTED")
        with engine.begin() as connection:
            yield frozenset(map(int, connection.scalars(_CLAIMED, {"owner": f"%-{pid}-%"})))

    def disconnect(self, name: str) -> None:
        """End the connections of a process that was killed, named as in Fleet.

        PostgreSQL would execute what the process had sent before. Raises TimeoutError.
        """
        deadline = time.monotonic() + DISCONNECTED_S
        while self.orders.scalars(_DISCONNECT, {"name": name}).all():
            if time.monotonic() > deadline:
                raise TimeoutError(f"PostgreSQL did not end the connections of {name}")
            time.sleep(_POLL_S)

    def refused_basket(self) -> str | None:
        """Return the business key of the first refused order; None if stock has refused none."""
        basket: str | None = self.stock.scalars(_REFUSED_BASKET).first()
        return basket


@contextmanager
def watching(orders_url: str, stock_url: str) -> Iterator[Watch]:
    """Connect to both databases within the block."""
    with ExitStack() as closing:
        connections = []
        for url in (orders_url, stock_url):
            # An open transaction would delay the watermark of the reconciliation.
            engine = create_engine(url, isolation_level="AUTOCOMMIT")
            closing.callback(engine.dispose)
            connections.append(closing.enter_context(engine.connect()))
        yield Watch(*connections)


_ORDERS = text("""
    SELECT (SELECT count(*) FROM orders) AS written,
           (SELECT count(*) FROM orders WHERE cancelled) AS compensated,
           (SELECT count(*) FROM shield_outbox WHERE status = 'PROCESSED') AS published,
           (SELECT count(*) FROM shield_outbox WHERE settled_at IS NULL)
           + (SELECT count(*) FROM shield_inbox WHERE settled_at IS NULL) AS open_rows
""")

_STOCK = text("""
    SELECT (SELECT count(*) FROM reservation) AS applied,
           (SELECT count(*) FROM shield_inbox WHERE status = 'MAX_RECONSUMED') AS refused,
           (SELECT count(*) FROM shield_outbox WHERE settled_at IS NULL)
           + (SELECT count(*) FROM shield_inbox WHERE settled_at IS NULL) AS open_rows
""")

_SHARDS = text("""
    SELECT owner, count(*) AS shards FROM shield_shard
    WHERE owner IS NOT NULL GROUP BY owner ORDER BY owner
""")

_CLAIMED = text("""
    SELECT biz_key FROM shield_outbox AS o JOIN shield_shard USING (shard)
    WHERE status = 'PROCESSING' AND owner LIKE :owner FOR UPDATE OF o SKIP LOCKED
""")

_DISCONNECT = text("""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = :name AND datname = current_database()
""")

_REFUSED_BASKET = text("""
    SELECT biz_key FROM shield_inbox WHERE status = 'MAX_RECONSUMED' ORDER BY event_id LIMIT 1
""")
