"""Three services full of planted events, and the verdict that each event deserves.

`orders` writes for `stock` and `mail`, and `stock` writes for `mail`. So one service feeds many
groups, one service has two groups, two services have groups of one name, and one group follows two
services. Everything is made from a seed. Transactions that stay open during a run fix the times: so
the watermarks are known to the microsecond, and a row exactly at a watermark is not a matter of
luck.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow.parquet as pq
from sqlalchemy import func, select

from shieldtx.domain.states import OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import OutputFolder
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.planting import Service, ago, inbox_row, outbox_row

O, I, V = OutboxStatus, InboxStatus, Verdict  # noqa: E741  short, for what is planted
COMMIT, ROLLBACK = TxKind.COMMIT, TxKind.ROLLBACK
MARGIN = timedelta(minutes=10)
DAY = 24 * 60
RETENTION = {"orders": timedelta(days=30), "mail": timedelta(days=20)}
"""Retention of settled rows by service; stock purges nothing."""
FOR_OTHERS = "shipping"
PART_WITHOUT_TIME = 0.1
"""The share of ids without a time."""
SENT_BY = {
    "orders": ("orders.placed", "orders.paid"),
    "stock": ("stock.reserved", "stock.released"),
}
"""The event types of a service; its one topic has the name of the service."""
COMPENSATES = {"orders": "refund", "stock": "release"}
"""The group of a service that compensates the service's own events."""
UNDOES = {("mail", "notify"): ("orders.placed",)}
"""Groups that compensate events of another service, and their types."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A consumer group, and the events that it should receive."""

    service: str
    name: str
    types: tuple[str, ...]
    limit: int
    declared: ExpectedGroup


def _group(service: str, name: str, *types: str, limit: int, **declared: Any) -> Group:
    expected = ExpectedGroup(name=name, max_attempts=limit, **declared)
    return Group(service=service, name=name, types=types, limit=limit, declared=expected)


GROUPS = (
    _group(
        *("stock", "reserve", "orders.placed"),
        limit=5,
        topics=("orders",),
        event_types=("orders.placed",),
    ),
    _group(
        *("stock", "ledger", "orders.placed", "orders.paid"),
        limit=3,
        topics=("orders",),
    ),
    _group(
        *("mail", "notify", "orders.placed", "stock.reserved"),
        limit=4,
        topics=("orders", "stock"),
        event_types=("orders.placed", "stock.reserved"),
    ),
    _group(*("mail", "ledger", "stock.reserved", "stock.released"), limit=6, upstreams=("stock",)),
)


class Key(NamedTuple):
    """An event and a group."""

    kind: str
    upstream: str
    downstream: str
    group: str
    event_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """An event in the world."""

    id: UUID
    upstream: str
    type: str
    key: str
    payload: str
    written_age: float
    kind: TxKind = COMMIT
    cause: tuple[UUID, str] | None = None
    """For a rollback: the event that it takes back. Otherwise: the event that caused this one."""

    @property
    def groups(self) -> list[Group]:
        """The groups that should receive the event."""
        return [group for group in GROUPS if self.type in group.types]

    @property
    def undoers(self) -> list[Group]:
        """The groups of other services that compensate the event."""
        return [g for g in self.groups if self.type in UNDOES.get((g.service, g.name), ())]


class World:
    """The three services, their planted rows, and the truth about them."""

    def __init__(self, services: Sequence[Service], *, declared: bool) -> None:
        self.services = {service.name: service for service in services}
        self.declared = declared
        """Whether the request names groups; otherwise expectations follow from past receipts."""
        self.truth: dict[Key, Verdict] = {}
        self.began: dict[str, datetime] = {}
        self.random = random.Random(0)
        self._outbox: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._inbox: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._sent: set[tuple[str, str]] = set()
        self._received: set[tuple[str, str, str]] = set()
        self._keys = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep a transaction open in each database, which fixes the watermarks meanwhile."""
        with ExitStack() as open_:
            for name, service in self.services.items():
                connection = open_.enter_context(service.engine.connect())
                self.began[name] = connection.scalars(select(func.now())).one()
            yield

    def watermark(self, upstream: str, downstream: str) -> datetime:
        """Return the time from which events between two services are in flight."""
        return min(self.began[upstream], self.began[downstream]) - MARGIN

    def databases(self) -> tuple[ServiceDatabase, ...]:
        """Return the services as a request names them."""
        return tuple(
            service.database(
                retention=RETENTION.get(name),
                groups=self._declared(name) if self.declared else None,
                others=(FOR_OTHERS,) if name == "orders" else (),
            )
            for name, service in self.services.items()
        )

    @property
    def listed(self) -> dict[Key, Verdict]:
        """Return the truth without the verdicts that are only counted."""
        return {
            key: verdict
            for key, verdict in self.truth.items()
            if verdict.is_listed and (verdict is not V.TOO_OLD or self._is_whole(key))
        }

    @property
    def counts(self) -> Counter[tuple[str, ...]]:
        """Return the number of events by pair and verdict."""
        return Counter((*key[:4], verdict.value) for key, verdict in self.truth.items())

    def _is_whole(self, key: Key) -> bool:
        """Return whether both sides have a planted row."""
        return (key.upstream, key.event_id) in self._sent and (
            key.downstream,
            key.group,
            key.event_id,
        ) in self._received

    def flush(self) -> None:
        """Write the planted rows into the tables."""
        for name, service in self.services.items():
            service.insert(outbox=self._outbox.pop(name, ()), inbox=self._inbox.pop(name, ()))

    # The parts of scenarios. Ages are in minutes, before the held transactions began.

    def event(
        self,
        type_: str,
        status: OutboxStatus = O.PROCESSED,
        *,
        age: float | None = None,
        because: Planted | None = None,
        event_id: UUID | None = None,
        **columns: Any,
    ) -> Planted:
        """Write an event; by default some time ago, and sent."""
        upstream = type_.partition(".")[0]
        age = self.random.uniform(30, 9 * DAY) if age is None else age
        planted = Planted(
            id=event_id or self.new_id(age),
            upstream=upstream,
            type=type_,
            key=columns.pop("key", None) or self.new_key(),
            payload=self._payload(),
            written_age=age,
            cause=because and (because.id, because.upstream),
        )
        self._write(planted, status, **columns)
        return planted

    def rollback(
        self,
        of: Planted,
        by: str,
        status: OutboxStatus = O.PROCESSED,
        *,
        verdict: Verdict = V.MATCHED,
        arrives: bool = True,
        age: float | None = None,
        **columns: Any,
    ) -> Planted:
        """Let a service take back an event, and note the verdict on the rollback.

        If the rollback does not arrive, the verdict holds for all groups. Otherwise it holds for
        the service that wrote the event, because the other groups compensate.
        """
        age = of.written_age if age is None else age
        planted = Planted(
            id=self.new_id(age),
            upstream=by,
            type=of.type,
            key=of.key,
            payload=json.dumps({"reason": f"out of stock, {self.random.random()}"}),
            written_age=age,
            kind=ROLLBACK,
            cause=(of.id, of.upstream),
        )
        self._write(planted, status, **columns)
        for group in (self.compensator(of), *(() if arrives else planted.undoers)):
            self.report(planted, group, verdict)
        return planted

    def got(
        self,
        event: Planted,
        group: Group,
        status: InboxStatus = I.PROCESSED,
        *,
        age: float | None = None,
        **columns: Any,
    ) -> None:
        """Let a group receive an event."""
        age = event.written_age if age is None else age
        times = {name: columns.pop(name, None) for name in ("settled_age", "due_age")}
        row = inbox_row(
            *(event.upstream, event.id, status),
            group=group.name,
            now=self.now,
            age=age,
            kind=event.kind,
            **times,
        )
        was_given_up = status in {I.MAX_RECONSUMED, I.DEAD, I.DISCARDED}
        row |= self._envelope(event) | {
            "attempts": group.limit if was_given_up else int(status is not I.FENCED),
            "event_time": ago(self.now, event.written_age),
            "last_error": "Refused: out of stock" if was_given_up else None,
            "lease_token": self.new_id(age) if status is I.PROCESSING else None,
        }
        self._inbox[group.service].append(row | columns)
        self._received.add((group.service, group.name, str(event.id)))

    def returned(
        self,
        rollback: Planted,
        status: InboxStatus = I.PROCESSED,
        *,
        compensated: bool = True,
        elsewhere: bool = True,
        **columns: Any,
    ) -> None:
        """Let the service whose event a rollback takes back receive it, and others `elsewhere`."""
        assert rollback.cause is not None
        group = self.compensator(rollback)
        done = {"compensated_id": rollback.cause[0]} if compensated else {}
        self.got(rollback, group, status, **(done | columns))
        for each in rollback.undoers if elsewhere else ():
            self.undone(rollback, each)

    def undone(
        self, rollback: Planted, group: Group, verdict: Verdict = V.MATCHED, **columns: Any
    ) -> None:
        """Let a group of another service compensate what it has applied, once."""
        assert rollback.cause is not None
        event_id, source = rollback.cause
        rows = [r for r in self._inbox[group.service] if r["consumer_group"] == group.name]
        (status,) = (
            r["status"] for r in rows if (r["event_id"], r["source"]) == (event_id, source)
        )
        is_first = all(row.get("compensated_id") != event_id for row in rows)
        owes = status == I.PROCESSED.value and is_first
        done = {"compensated_id": event_id} if owes else {}
        self.got(rollback, group, **(done | columns))
        self.report(rollback, group, verdict)

    def rest(self, event: Planted, *but: Group, verdict: Verdict = V.MATCHED) -> None:
        """Let the other groups receive an event that was sent, or note `verdict` for them."""
        for group in event.groups:
            if group not in but:
                self.report(event, group, verdict)
                if verdict is V.MATCHED:
                    self.got(event, group)

    def report(self, event: Planted, group: Group, verdict: Verdict) -> None:
        """Note the verdict that an event deserves in a group."""
        if verdict is V.ATTEMPTS_DIFFER and not self.declared:
            verdict = V.REFUSED
        key = Key(event.kind.value, event.upstream, group.service, group.name, str(event.id))
        assert key not in self.truth
        self.truth[key] = verdict

    def compensator(self, of: Planted) -> Group:
        """Return the group that takes an event back, or receives its rollback."""
        service = of.cause[1] if of.kind is ROLLBACK and of.cause else of.upstream
        return _group(service, COMPENSATES[service], limit=7)

    @property
    def now(self) -> datetime:
        """Return the time from which ages count."""
        return min(self.began.values())

    def new_id(self, age: float) -> UUID:
        """Make an id: usually a UUIDv7 of its time, sometimes an id without a time."""
        bits = self.random.getrandbits(128)
        if self.random.random() < PART_WITHOUT_TIME:
            return UUID(int=bits, version=4)
        milliseconds = int(ago(self.now, age).timestamp() * 1000)
        noise = bits & ~(0xFFFFFFFFFFFF_F << 76) & ~(0b11 << 62)
        return UUID(int=milliseconds << 80 | 7 << 76 | 0b10 << 62 | noise)

    def new_key(self) -> str:
        """Make a key that no other event has: an open row would block the others of its key."""
        self._keys += 1
        return f"key-{self._keys}"

    def _declared(self, service: str) -> tuple[ExpectedGroup, ...]:
        groups = [group.declared for group in GROUPS if group.service == service]
        if service in COMPENSATES:
            groups.append(ExpectedGroup(name=COMPENSATES[service], kind=ROLLBACK))
        for group in GROUPS:
            if group.service == service and (types := UNDOES.get((service, group.name))):
                topics = group.declared.topics
                of_others = {"kind": ROLLBACK, "of_others": True, "event_types": types}
                groups.append(ExpectedGroup(name=group.name, topics=topics, **of_others))
        return tuple(groups)

    def _write(self, event: Planted, status: OutboxStatus, **columns: Any) -> None:
        times = {name: columns.pop(name, None) for name in ("settled_age", "due_age")}
        row = outbox_row(
            *(event.upstream, event.id, status),
            now=self.now,
            age=event.written_age,
            kind=event.kind,
            **times,
        )
        is_error = status in {O.FAILED, O.UNRESOLVED}
        row |= self._envelope(event) | {
            "attempts": int(status in OUTBOX.settled),
            "last_error": "MessageSizeTooLarge: refused" if is_error else None,
            "lease_token": self.new_id(0) if status is O.PROCESSING else None,
        }
        self._outbox[event.upstream].append(row | columns)
        self._sent.add((event.upstream, str(event.id)))

    def _envelope(self, event: Planted) -> dict[str, Any]:
        cause, source = event.cause or (None, None)
        topic, _, _ = event.type.partition(".")
        return {
            "topic": topic,
            "event_type": event.type,
            "key": event.key,
            "payload": event.payload,
            "causation_id": cause,
            "causation_source": source,
        }

    def _payload(self) -> str:
        words = self.random.choices(("Müller", "日本", "plain", "🛒", "\\n"), k=3)
        return json.dumps({"n": self.random.random(), "words": words}, ensure_ascii=False)


def request(world: World, folder: Path, jdbc_jar: Path, **changes: Any) -> ReconcileRequest:
    """Return the request for the reconciliation of a world."""
    return ReconcileRequest(
        services=world.databases(), folder=folder, margin=MARGIN, jdbc_jar=jdbc_jar, **changes
    )


def found_rows(folder: OutputFolder) -> dict[Key, Verdict]:
    """Return the verdict by event and group of the rows that a run has listed, each once."""
    rows = pq.read_table(folder.rows).to_pylist()
    found = {
        Key(
            kind=row["kind"],
            upstream=row["upstream"],
            downstream=row["downstream"],
            group=row["consumer_group"],
            event_id=row["event_id"],
        ): Verdict[row["verdict"]]
        for row in rows
    }
    assert len(found) == len(rows)
    return found
