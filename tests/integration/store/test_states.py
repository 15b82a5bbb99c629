"""Every statement that moves a row, run on a row in every state: it moves along an arrow or not.

All other conditions of the statement are met: the row is due, in a shard of the relay, with the
token of the caller. Only its status can then keep it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Table, insert, select
from sqlalchemy.exc import IntegrityError

from shieldtx import InboxStatus, LocalOutcome, OutboxStatus, TxKind, new_event_id
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import INBOX, OUTBOX
from shieldtx.errors import IllegalTransition, LeaseLost
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.half_messages import CheckResult, CheckSchedule, DueCheck
from shieldtx.ports.inbox import Attempt, IncomingEvent
from shieldtx.ports.relay import Retry, Settlement
from shieldtx.ports.repair import Note, RepairAction, RowSeen
from shieldtx.store.dead_letters import SqlDeadLetters
from shieldtx.store.discards import SqlDiscards
from shieldtx.store.half_message_admin import SqlHalfMessageAdmin
from shieldtx.store.half_messages import SqlHalfMessageStore
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.statements import compensation as compensation_sql
from shieldtx.store.statements import inbox as inbox_sql
from shieldtx.store.statements import outbox as outbox_sql
from shieldtx.store.statements import refusals as refusals_sql
from tests.support.write_side_shop import Shop

GROUP, RELAY = "stock", "r"
HOUR = timedelta(hours=1)
O, I = OutboxStatus, InboxStatus  # noqa: E741  as short as the tables below need them


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row in the database, and its known values."""

    shop: Shop
    table: Table
    envelope: Envelope
    token: UUID = field(default_factory=uuid4)

    def read(self) -> dict[str, Any]:
        with self.shop.engine.connect() as connection:
            rows = connection.execute(select(self.table).where(self._is_it)).mappings().all()
        return dict(*rows)

    @property
    def _is_it(self) -> Any:
        return self.table.c.event_id == self.envelope.id

    @property
    def attempt(self) -> Attempt:
        return Attempt(envelope=self.envelope, group=GROUP, number=1, token=self.token)


@dataclass(frozen=True, kw_only=True)
class Mover:
    """A statement that moves rows, run in the way of the product."""

    target: OutboxStatus | InboxStatus
    sources: set[Any]
    act: Callable[[Row], object]
    columns: dict[str, Any] = field(default_factory=dict)
    kind: TxKind = TxKind.COMMIT


def outbox(row: Row) -> SqlRelayStore:
    return SqlRelayStore(row.shop.engine, row.shop.tables)


def inbox(row: Row) -> SqlInboxStore:
    return SqlInboxStore(row.shop.engine, row.shop.tables)


def settle(**settlement: Any) -> Callable[[Row], object]:
    return lambda row: outbox(row).settle(
        row.token, Settlement(**{name: [row.envelope.id] for name in settlement}, reason="away")
    )


def settle_at_address(row: Row) -> None:
    """Settle a row as a relay does that has its address from the claim."""
    o, dialect = row.shop.tables.outbox, row.shop.dialect
    statement = outbox_sql.processed_at_addresses(row.shop.tables, dialect)
    with row.shop.engine.begin() as connection:
        its_row = select(dialect.address(o)).where(o.c.event_id == row.envelope.id)
        addresses = connection.scalars(its_row).all()
        connection.execute(statement, outbox_sql.address_parameters(row.token, addresses))


def retry(row: Row) -> None:
    again = Retry(event_id=row.envelope.id, delay=HOUR, reason="refused")
    outbox(row).settle(row.token, Settlement(retries=[again]))


def fail(row: Row) -> None:
    outbox(row).fail(row.token, row.envelope.id, reason="rejected", local_rollback=None)


def claim(row: Row) -> None:
    SqlLeaseStore(row.shop.engine, row.shop.tables).renew(relay=RELAY, lease=HOUR)
    outbox(row).claim(relay=RELAY, limit=10)


def withdraw(row: Row) -> None:
    SqlLeaseStore(row.shop.engine, row.shop.tables).renew(relay=RELAY, lease=HOUR)
    outbox(row).withdraw(relay=RELAY, renamed=f"{RELAY} again")


def cancel(row: Row) -> None:
    with row.shop.engine.begin() as connection:
        row.shop.outbox.cancel(connection, row.envelope.id)


def replay_outbox(row: Row) -> None:
    tables, dialect = row.shop.tables, row.shop.dialect
    with row.shop.engine.begin() as connection:
        connection.execute(outbox_sql.replay(tables, dialect, row.envelope.id))


def discard(row: Row) -> None:
    """An operator who has seen the row in its present state."""
    [letter] = SqlDeadLetters(row.shop.engine, row.shop.tables).find(row.envelope.id)
    discards = SqlDiscards(row.shop.engine, row.shop.tables)
    discards.discard([letter], who="ann", reason="a test")


def half_store(row: Row) -> SqlHalfMessageStore:
    return SqlHalfMessageStore(row.shop.engine, row.shop.tables, shards=4, plan=CheckSchedule())


def say(outcome: LocalOutcome) -> Callable[[Row], object]:
    return lambda row: half_store(row).resolve([row.envelope.id], outcome)


def answer(outcome: LocalOutcome) -> Callable[[Row], object]:
    def act(row: Row) -> None:
        check = CheckResult(DueCheck(row.envelope, 1), outcome, "as the checker said")
        half_store(row).answer(row.token, [check])

    return act


def park(row: Row) -> None:
    half_store(row).park(limit=10)


def decide(outcome: LocalOutcome) -> Callable[[Row], object]:
    """An operator who has seen the row in its present state."""

    def act(row: Row) -> None:
        admin = SqlHalfMessageAdmin(row.shop.engine, row.shop.tables)
        message = admin.find(row.envelope.id)
        assert message is not None
        with suppress(IllegalTransition):
            admin.decide([message], outcome, who="ann")

    return act


def repair(action: RepairAction) -> Callable[[Row], object]:
    """A repair that has seen the row as it is: only its status can keep it unchanged."""

    def act(row: Row) -> None:
        now = row.read()
        seen = RowSeen(
            event_id=row.envelope.id,
            source=row.envelope.source,
            group=now.get("consumer_group"),
            status=now["status"],
            settled_at=now["settled_at"],
            attempts=now["attempts"],
        )
        note = Note(who="ann", run_id="1", verdict="STUCK")
        repairs = SqlRepairStore(row.shop.engine, row.shop.tables, source="shop")
        repairs.repair(action, [seen], note=note, dry_run=False)

    return act


def start_attempt(row: Row) -> None:
    inbox(row).start_attempt(GROUP, row.envelope, lease=HOUR, max_attempts=10)


def take_effect(row: Row) -> None:
    with suppress(LeaseLost), inbox(row).effect(row.attempt):
        """Change only the status."""


def take_effect_together(row: Row) -> None:
    with suppress(LeaseLost), inbox(row).effects([row.attempt]):
        """Change only the status."""


def release(row: Row) -> None:
    inbox(row).release([row.attempt])


def postpone(row: Row) -> None:
    inbox(row).postpone(row.attempt, delay=HOUR, reason="failed")


def defer(row: Row) -> None:
    inbox(row).defer(row.attempt, delay=HOUR, reason="of another version")


def give_up(row: Row) -> None:
    inbox(row).give_up(row.attempt, reason="failed", in_transaction=None)


def park_event(row: Row) -> None:
    inbox(row).give_up(row.attempt, reason="failed", in_transaction=None, parked=True)


def replay_inbox(row: Row) -> None:
    _decide(row, inbox_sql.replay)


def refuse_parked(row: Row) -> None:
    _decide(row, partial(refusals_sql.refuse, reason="sold out"))


def fence_parked(row: Row) -> None:
    _decide(row, compensation_sql.fence_parked)


def _decide(row: Row, statement_of: Callable[..., Any]) -> None:
    tables, dialect = row.shop.tables, row.shop.dialect
    statement = statement_of(
        tables, dialect, group=GROUP, event_id=row.envelope.id, source=row.envelope.source
    )
    with row.shop.engine.begin() as connection:
        connection.execute(statement)


# Read when the tests are collected; they may run hours later, but not days.
NOW = datetime.now(UTC)
DAY = timedelta(days=1)
FREE = {"due_at": NOW - DAY, "lease_until": NOW - DAY}
CHECKED = {"due_at": NOW + DAY, "check_at": NOW - DAY, "checks": 0, "waiting": True}
DELAYED = {"due_at": NOW + DAY, "waiting": True, "holds_key": False}

OUTBOX_MOVERS = {
    "claim": Mover(target=O.PROCESSING, sources={O.INIT, O.PROCESSING}, act=claim, columns=FREE),
    "processed": Mover(target=O.PROCESSED, sources={O.PROCESSING}, act=settle(processed=1)),
    "processed at its address": Mover(
        target=O.PROCESSED, sources={O.PROCESSING}, act=settle_at_address
    ),
    "withdraw": Mover(target=O.INIT, sources={O.PROCESSING}, act=withdraw),
    "release": Mover(target=O.INIT, sources={O.PROCESSING}, act=settle(unsent=1)),
    "release unconfirmed": Mover(target=O.INIT, sources={O.PROCESSING}, act=settle(unconfirmed=1)),
    "retry": Mover(target=O.INIT, sources={O.PROCESSING}, act=retry),
    "failed": Mover(target=O.FAILED, sources={O.PROCESSING}, act=fail),
    "cancel": Mover(target=O.DISCARDED, sources={O.INIT}, act=cancel, columns=DELAYED),
    "replay": Mover(target=O.INIT, sources={O.FAILED}, act=replay_outbox),
    "discard": Mover(target=O.DISCARDED, sources={O.FAILED}, act=discard),
    "publish again": Mover(
        target=O.INIT, sources={O.PROCESSED}, act=repair(RepairAction.PUBLISH_AGAIN)
    ),
    "release event": Mover(
        target=O.INIT,
        sources={O.PROCESSING},
        act=repair(RepairAction.RELEASE_EVENT),
        columns=FREE,
    ),
    "commit by word": Mover(
        target=O.INIT, sources={O.HALF}, act=say(LocalOutcome.COMMIT), columns=CHECKED
    ),
    "rollback by word": Mover(
        target=O.DISCARDED, sources={O.HALF}, act=say(LocalOutcome.ROLLBACK), columns=CHECKED
    ),
    "commit by check": Mover(
        target=O.INIT, sources={O.HALF}, act=answer(LocalOutcome.COMMIT), columns=CHECKED
    ),
    "rollback by check": Mover(
        target=O.DISCARDED, sources={O.HALF}, act=answer(LocalOutcome.ROLLBACK), columns=CHECKED
    ),
    "park": Mover(
        target=O.UNRESOLVED, sources={O.HALF}, act=park, columns=CHECKED | {"checks": 15}
    ),
    "commit by an operator": Mover(
        target=O.INIT,
        sources={O.HALF, O.UNRESOLVED},
        act=decide(LocalOutcome.COMMIT),
        columns=CHECKED,
    ),
    "rollback by an operator": Mover(
        target=O.DISCARDED,
        sources={O.HALF, O.UNRESOLVED},
        act=decide(LocalOutcome.ROLLBACK),
        columns=CHECKED,
    ),
    "replay by repair": Mover(
        target=O.INIT, sources={O.FAILED}, act=repair(RepairAction.REPLAY_EVENT)
    ),
}
INBOX_MOVERS = {
    "start_attempt": Mover(
        target=I.PROCESSING, sources={I.INIT, I.PROCESSING}, act=start_attempt, columns=FREE
    ),
    "processed": Mover(target=I.PROCESSED, sources={I.PROCESSING}, act=take_effect),
    "processed together": Mover(
        target=I.PROCESSED, sources={I.PROCESSING}, act=take_effect_together
    ),
    "release": Mover(target=I.PROCESSING, sources={I.PROCESSING}, act=release),
    "postpone": Mover(target=I.PROCESSING, sources={I.PROCESSING}, act=postpone),
    "defer": Mover(target=I.PROCESSING, sources={I.PROCESSING}, act=defer),
    "give_up": Mover(target=I.MAX_RECONSUMED, sources={I.PROCESSING}, act=give_up),
    "give_up compensation": Mover(
        target=I.DEAD, sources={I.PROCESSING}, act=give_up, kind=TxKind.ROLLBACK
    ),
    "park": Mover(target=I.DEAD, sources={I.PROCESSING}, act=park_event),
    "replay": Mover(target=I.PROCESSING, sources={I.DEAD}, act=replay_inbox, kind=TxKind.ROLLBACK),
    "replay parked": Mover(target=I.PROCESSING, sources={I.DEAD}, act=replay_inbox),
    "refuse parked": Mover(target=I.MAX_RECONSUMED, sources={I.DEAD}, act=refuse_parked),
    "fence parked": Mover(target=I.FENCED, sources={I.DEAD}, act=fence_parked),
    "discard": Mover(target=I.DISCARDED, sources={I.DEAD}, act=discard, kind=TxKind.ROLLBACK),
    "release attempt": Mover(
        target=I.PROCESSING,
        sources={I.PROCESSING},
        act=repair(RepairAction.RELEASE_ATTEMPT),
        columns=FREE,
    ),
    "replay by repair": Mover(
        target=I.PROCESSING,
        sources={I.DEAD},
        act=repair(RepairAction.REPLAY_COMPENSATION),
        kind=TxKind.ROLLBACK,
    ),
}


def put(shop: Shop, table: Table, status: str, kind: TxKind, **columns: Any) -> Row:
    """Set a row to a state, by force."""
    envelope = Envelope(
        id=new_event_id(),
        type="order.placed",
        source="shop",
        topic="orders",
        payload="{}",
        time=NOW,
        kind=kind,
        causation_id=new_event_id() if kind is TxKind.ROLLBACK else None,
        causation_source="shop" if kind is TxKind.ROLLBACK else None,
    )
    row = Row(shop=shop, table=table, envelope=envelope)
    values = {
        "event_id": envelope.id,
        "event_type": envelope.type,
        "source": envelope.source,
        "topic": envelope.topic,
        "payload": envelope.payload,
        "tx_kind": kind.value,
        "operation": envelope.operation.value,
        "causation_id": envelope.causation_id,
        "causation_source": envelope.causation_source,
        "status": status,
        "attempts": 1,
        "due_at": NOW,
        "lease_token": row.token,
        "lease_until": NOW + DAY,
    }
    if table is shop.tables.outbox:
        values |= {"shard": 0, "waiting": False, "holds_key": False, "unconfirmed": False}
        values |= {"created_at": NOW}
    else:
        values |= {"consumer_group": GROUP, "event_time": NOW, "received_at": NOW}
    with shop.engine.begin() as connection:
        connection.execute(insert(table).values(values | columns))
    return row


def settlements(status: Any) -> list[dict[str, Any]]:
    """Return the `settled_at` values of a row in this state: the legal one, the impossible one."""
    settled = status in {*OUTBOX.settled, *INBOX.settled}
    return [{"settled_at": NOW}, {"settled_at": None}] if settled else [{"settled_at": None}]


def cases() -> Iterator[Any]:
    for place, movers, statuses in (
        ("outbox", OUTBOX_MOVERS, OutboxStatus),
        ("inbox", INBOX_MOVERS, InboxStatus),
    ):
        for name, mover in movers.items():
            for status in statuses:
                yield pytest.param(place, mover, status, id=f"{place}-{name}-from-{status}")


@pytest.mark.parametrize(("place", "mover", "status"), list(cases()))
def test_statement_moves_a_row_along_an_arrow_or_not_at_all(
    postgres_shop: Shop, place: str, mover: Mover, status: Any
):
    table = getattr(postgres_shop.tables, place)
    lifecycle = OUTBOX if place == "outbox" else INBOX
    for settlement in settlements(status):
        row = put(postgres_shop, table, status, mover.kind, **settlement, **mover.columns)
        before = row.read()
        mover.act(row)
        after = row.read()
        if status in mover.sources:
            assert lifecycle.allows(status, mover.target)
            assert after["status"] == mover.target
            assert after != before
            assert (after["settled_at"] is not None) == (mover.target in lifecycle.settled)
        else:
            assert after == before


def test_all_arrows_have_their_statement():
    for lifecycle, movers in ((OUTBOX, OUTBOX_MOVERS), (INBOX, INBOX_MOVERS)):
        drawn = {(t.source, t.target) for t in lifecycle.transitions}
        tried = {(source, m.target) for m in movers.values() for source in m.sources}
        births = {arrow for arrow in drawn if arrow[0] is None}
        assert tried == drawn - births


WITH_TOKEN = [
    ("outbox", name)
    for name in (
        "processed",
        "processed at its address",
        "release",
        "release unconfirmed",
        "retry",
        "failed",
    )
] + [
    ("inbox", name)
    for name in (
        "processed",
        "processed together",
        "release",
        "postpone",
        "defer",
        "give_up",
        "give_up compensation",
    )
]


@pytest.mark.parametrize(("place", "name"), WITH_TOKEN)
@pytest.mark.parametrize("token", [None, uuid4()], ids=["given back", "taken over"])
def test_a_statement_with_an_old_token_moves_nothing(postgres_shop: Shop, place, name, token):
    mover = (OUTBOX_MOVERS if place == "outbox" else INBOX_MOVERS)[name]
    table = getattr(postgres_shop.tables, place)
    row = put(postgres_shop, table, "PROCESSING", mover.kind, lease_token=token)
    before = row.read()
    mover.act(row)
    assert row.read() == before


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("outbox", "claim"),
        ("outbox", "release event"),
        ("inbox", "start_attempt"),
        ("inbox", "release attempt"),
    ],
)
def test_a_leased_row_is_not_claimed_by_another_worker(postgres_shop: Shop, place, name):
    mover = (OUTBOX_MOVERS if place == "outbox" else INBOX_MOVERS)[name]
    held = FREE | {"lease_until": NOW + DAY}
    row = put(postgres_shop, getattr(postgres_shop.tables, place), "PROCESSING", mover.kind, **held)
    before = row.read()
    mover.act(row)
    assert row.read() == before


@pytest.mark.parametrize("status", list(InboxStatus))
def test_redelivered_event_leaves_its_row_unchanged(postgres_shop: Shop, status):
    row = put(postgres_shop, postgres_shop.tables.inbox, status, TxKind.COMMIT)
    before = row.read()
    record = ReceivedRecord(topic="orders.commit", partition=0, offset=0, key=None, value=b"{}")
    arrival = IncomingEvent(envelope=row.envelope, record=record)
    assert inbox(row).receive(GROUP, [arrival], []).duplicates == 1
    rollback = row.envelope.evolve(
        id=new_event_id(),
        kind=TxKind.ROLLBACK,
        causation_id=row.envelope.id,
        causation_source=row.envelope.source,
    )
    with postgres_shop.session() as session, session.begin():
        attempt = Attempt(envelope=rollback, group=GROUP, number=1, token=uuid4())
        assert not inbox(row).fence(session, attempt)
    assert row.read() == before


@pytest.mark.parametrize("place", ["outbox", "inbox"])
def test_database_refuses_other_states(postgres_shop: Shop, place: str):
    table = getattr(postgres_shop.tables, place)
    for status in OutboxStatus if place == "outbox" else InboxStatus:
        put(postgres_shop, table, status, TxKind.COMMIT)
    with pytest.raises(IntegrityError, match="status_check"):
        put(postgres_shop, table, "LOST", TxKind.COMMIT)
