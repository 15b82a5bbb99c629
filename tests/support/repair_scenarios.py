"""Two services with mismatches between them, and the rows that a run would have listed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Engine, create_engine, event, text

from shieldtx import Event, Refused
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.repair.decisions import Policy
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.repair.repair import Repair
from shieldtx.reconcile.repair.tally import RepairReport
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.tables import tables
from tests.support.service import QUICK, Service, drain_and_close, effect, make_topics

BOTH = frozenset({"orders", "stock"})


class Pair:
    """Service orders writes events; the groups `stock` and `mail` of service stock receive them."""

    def __init__(self, make_service: Callable[..., Service]) -> None:
        self.orders, self.stock = make_service("orders"), make_service("stock")
        self.orders.app.declare("orders.placed")
        self.refuse = False
        compensating = self.orders.app.consumer("orders")
        compensating.compensates("orders.placed", retry=QUICK)(effect("compensated"))

        for group in ("stock", "mail"):
            handler = partial(self._handle, effect(group))
            self.stock.app.consumer(group).handles("orders.placed", retry=QUICK)(handler)
        make_topics(self.orders, self.stock)

    def _handle(self, act: Callable[[Any, Any], None], session: Any, event: Any) -> None:
        if self.refuse:
            raise Refused("no stock for hunter2")
        act(session, event)

    def write(self, number: int) -> None:
        with self.orders.transaction() as session:
            for n in range(number):
                placed = Event(type="orders.placed", key=f"k{n % 3}", payload={"pin": "hunter2"})
                self.orders.app.outbox.add(session, placed)

    def work(self) -> None:
        """Run relays and consumers until all of them are idle."""
        relays = [service.relay() for service in (self.orders, self.stock)]
        workers = [
            self.orders.app.build_consumer("orders"),
            *(self.stock.app.build_consumer(group) for group in ("stock", "mail")),
        ]
        drain_and_close(*relays, *workers)

    def refuse_all(self, number: int) -> None:
        """Write events that all groups give up, and run all workers until they are idle."""
        self.refuse = True
        self.write(number)
        self.work()
        self.refuse = False

    def lose_inbox_rows(self, *groups: str) -> None:
        """Delete inbox rows and effects, as if their records had vanished unread."""
        for group in groups:
            self.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = :g", g=group)
            self.stock.execute("DELETE FROM effects WHERE what = :group", group=group)

    def missing(self, *groups: str) -> list[ListedRow]:
        return [
            listed(Verdict.MISSING_DOWNSTREAM, sent=sent, group=group)
            for sent in self.sent()
            for group in groups
        ]

    def absent(self) -> list[ListedRow]:
        return [
            listed(Verdict.ABSENT_FROM_TOPIC, sent=sent, group="orders.placed")
            for sent in self.sent()
        ]

    def sent(self) -> list[dict[str, Any]]:
        return rows(self.orders, "SELECT * FROM shield_outbox ORDER BY seq")

    def received(self, group: str) -> list[dict[str, Any]]:
        query = "SELECT * FROM shield_inbox WHERE consumer_group = :group ORDER BY seq"
        return rows(self.stock, query, group=group)

    def repair(self, listed_: Sequence[ListedRow], **more: Any) -> RepairReport:
        return repair(self.orders.engine.url, self.stock.engine.url, listed_, **more)

    def audits(self, service: Service) -> list[tuple[Any, ...]]:
        return service.rows("SELECT who, action, subject, detail FROM shield_audit ORDER BY id")


def repair(
    orders_url: Any, stock_url: Any, listed_: Iterable[ListedRow], **more: Any
) -> RepairReport:
    """Run a repair over connections of its own."""
    engines = {"orders": create_engine(orders_url), "stock": create_engine(stock_url)}
    policy = more.pop("policy", Policy(services=BOTH, named=frozenset(Verdict)))
    stores = {
        name: SqlRepairStore(engine, tables(), source=name) for name, engine in engines.items()
    }
    job = Repair(stores=stores, policy=policy, **({"run_id": "r1", "who": "ann@desk"} | more))
    try:
        return job.run(listed_)
    finally:
        for engine in engines.values():
            engine.dispose()


def lose(pair: Pair, group: str, *events: UUID) -> None:
    """Delete these events' rows and effects, as if their records had vanished unread."""
    pair.stock.execute(
        "DELETE FROM shield_inbox WHERE consumer_group = :g AND event_id = ANY(:events)",
        g=group,
        events=list(events),
    )
    pair.stock.execute(
        "DELETE FROM effects WHERE what = :g AND event_id = ANY(:events)",
        g=group,
        events=[str(event) for event in events],
    )


def write_one_by_one(pair: Pair, number: int) -> None:
    """Write events of keys 0, 1, 2, 0 and so on, each in a transaction of its own."""
    for n in range(number):
        with pair.orders.transaction() as session:
            placed = Event(type="orders.placed", key=f"k{n % 3}", payload={"n": n})
            pair.orders.app.outbox.add(session, placed)


def absent(pair: Pair, *numbers: int) -> list[ListedRow]:
    found = pair.absent()
    return [found[number] for number in numbers]


def rows(service: Service, query: str, **parameters: Any) -> list[dict[str, Any]]:
    with service.engine.connect() as connection:
        return [dict(row) for row in connection.execute(text(query), parameters).mappings()]


def listed(
    verdict: Verdict,
    *,
    sent: dict[str, Any] | None = None,
    received: dict[str, Any] | None = None,
    group: str = "stock",
) -> ListedRow:
    """List a row as a run does that finds these two rows."""
    one = sent or received
    assert one is not None
    return ListedRow(
        kind=TxKind(one["tx_kind"]),
        upstream=one["source"],
        downstream="orders" if one["tx_kind"] == "ROLLBACK" else "stock",
        group=group,
        event_id=UUID(str(one["event_id"])),
        topic=one["topic"],
        event_type=one["event_type"],
        verdict=verdict,
        upstream_status=OutboxStatus(sent["status"] if sent else "PROCESSED"),
        downstream_status=InboxStatus(received["status"]) if received else None,
        upstream_attempts=sent["attempts"] if sent else 1,
        attempts=received["attempts"] if received else None,
        published_at=sent["settled_at"] if sent else one["settled_at"],
        settled_at=received["settled_at"] if received else None,
    )


def owed(pair: Pair, number: int, *groups: str) -> list[ListedRow]:
    """Let all groups give events up, and delete the rollbacks before they are sent."""
    pair.refuse_all(number)
    pair.stock.execute("DELETE FROM shield_outbox")
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.orders.execute("DELETE FROM effects")
    return [
        listed(Verdict.NEITHER_EFFECT_NOR_COMPENSATION, received=received, group=group)
        for group in groups
        for received in pair.received(group)
    ]


def audited(service: Service) -> list[str]:
    """Return the events that the audit log names."""
    details = [json.loads(detail) for (detail,) in service.rows("SELECT detail FROM shield_audit")]
    return [e for detail in details for ids in detail["events"].values() for e in ids]


def strand(pair: Pair, table: str, lease_until: str) -> None:
    """Leave rows as a process does that died while it processed them."""
    service = pair.orders if table == "shield_outbox" else pair.stock
    service.execute(
        f"UPDATE {table} SET status = 'PROCESSING', settled_at = NULL, attempts = 1, "
        f"lease_token = gen_random_uuid(), lease_until = {lease_until}"
    )


def write_parquet(folder: Path, listed_: Sequence[ListedRow], *, run_id: str = "") -> None:
    """Write rows into a folder as Spark does."""
    times = pa.timestamp("us", tz="UTC")
    pair = ("kind", "upstream", "downstream", "consumer_group")
    texts = (*pair, "event_id", "topic", "event_type", "verdict", "run_id")
    schema = pa.schema(
        [
            *((name, pa.string()) for name in texts),
            *((name, pa.string()) for name in ("upstream_status", "downstream_status")),
            *((name, pa.int32()) for name in ("upstream_attempts", "attempts")),
            *((name, times) for name in ("published_at", "settled_at")),
        ]
    )
    found = [
        {
            **{name: getattr(row, name) for name in schema.names if hasattr(row, name)},
            "consumer_group": row.group,
            "event_id": str(row.event_id),
            "run_id": run_id,
        }
        for row in listed_
    ]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(found, schema=schema), folder / "part-0.parquet")


@contextmanager
def before_statements(act: Callable[[str], None]) -> Iterator[None]:
    """Call a function with each statement before any connection runs it."""

    def look(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        act(statement)

    event.listen(Engine, "before_cursor_execute", look)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", look)
