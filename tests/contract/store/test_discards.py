"""A discard of an operator is final and audited, and leaves all other rows unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, select, update

from shieldtx import InboxStatus, OutboxStatus, TxKind, new_event_id
from shieldtx.domain.events import Envelope, shard_of
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent, Parked
from shieldtx.store.dead_letter_rows import DeadLetter, ParkedRecord
from shieldtx.store.dead_letters import SqlDeadLetters
from shieldtx.store.discards import DISCARD, Discard, SqlDiscards
from shieldtx.store.statements.envelope_columns import values_of
from tests.contract.conftest import SHARDS, UNINDEXED, Stores, with_settings

GROUP, RELAY = "orders", "r"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
RECORD = ReceivedRecord(
    topic="orders.placed.commit", partition=1, offset=7, key=b"k", value=b"no event"
)


def an_event(kind: TxKind = TxKind.COMMIT, *, of: UUID | None = None, key: str = "k1") -> Envelope:
    return Envelope(
        id=UUID(int=new_event_id().int - (int(3 * DAY.total_seconds() * 1000) << 80)),
        type="orders.placed",
        source="stock" if kind is TxKind.ROLLBACK else "orders",
        topic="orders.placed",
        key=key,
        payload="{}",
        time=datetime.now(UTC),
        kind=kind,
        causation_id=of,
        causation_source=None if of is None else "orders",
    )


def put(stores: Stores, envelope: Envelope, status: str, **columns: Any) -> Envelope:
    """Set a row to a state, by force: of the inbox with a `consumer_group`, else of the outbox."""
    now = datetime.now(UTC)
    values: dict[str, Any] = values_of(envelope) | {
        "status": status,
        "attempts": 3,
        "due_at": now,
        "settled_at": now,
        "last_error": "no such order",
        **({"seq": envelope.id.int % 2**40} if stores.engine.dialect.name == "sqlite" else {}),
    }
    if "consumer_group" in columns:
        table = stores.tables.inbox
        values |= {"event_time": now, "received_at": now}
    else:
        table = stores.tables.outbox
        shard = shard_of(envelope.key, envelope.id, SHARDS)
        values |= {"shard": shard, "waiting": False, "holds_key": False, "unconfirmed": False}
        values |= {"created_at": now}
    known = {name: value for name, value in (values | columns).items() if name in table.c}
    with stores.engine.begin() as connection:
        connection.execute(insert(table).values(known))
    return envelope


def failed(stores: Stores, **columns: Any) -> Envelope:
    return put(stores, an_event(), OutboxStatus.FAILED, **columns)


def dead(stores: Stores, of: UUID | None = None, group: str = GROUP) -> Envelope:
    rollback = an_event(TxKind.ROLLBACK, of=of or new_event_id())
    return put(stores, rollback, InboxStatus.DEAD, consumer_group=group)


def parked(stores: Stores, value: bytes = b"no event") -> ParkedRecord:
    record = RECORD._replace(value=value)
    stores.inbox.receive(GROUP, [], [Parked(record=record, reason="no CloudEvent")])
    found = letters(stores).find_parked(group=GROUP, topic=record.topic, partition=1, offset=7)
    return next(one for one in found if one.record.value == value)


def letters(stores: Stores) -> SqlDeadLetters:
    return SqlDeadLetters(stores.engine, stores.tables)


def letter(stores: Stores, envelope: Envelope) -> DeadLetter:
    (found,) = letters(stores).find(envelope.id)
    return found


def discard(stores: Stores, *rows: DeadLetter | ParkedRecord) -> list[Discard]:
    discards = SqlDiscards(stores.engine, stores.tables)
    return list(discards.discard(rows, who="ann@desk", reason="a test of the producer"))


def audits(stores: Stores) -> list[Mapping[str, Any]]:
    with stores.engine.connect() as connection:
        return list(connection.execute(select(stores.tables.audit)).mappings())


@pytest.mark.begun_by_hand
def test_row_in_each_waiting_state_is_discarded_with_audit(stores: Stores) -> None:
    event, rollback, record = failed(stores), dead(stores), parked(stores)
    rows: list[DeadLetter | ParkedRecord] = [
        letter(stores, event),
        letter(stores, rollback),
        record,
    ]

    done = discard(stores, *rows)

    assert [(each.done, each.status) for each in done] == [(True, "DISCARDED")] * 3
    assert letter(stores, event).status is OutboxStatus.DISCARDED
    assert letter(stores, rollback).status is InboxStatus.DISCARDED
    assert parked(stores).discarded_at is not None
    noted = {entry["subject"]: entry for entry in audits(stores)}
    assert set(noted) == {str(row) for row in rows}
    assert {(entry["who"], entry["action"]) for entry in noted.values()} == {
        ("ann@desk", "discard")
    }
    details = {subject: json.loads(entry["detail"]) for subject, entry in noted.items()}
    assert [details[str(row)]["from"] for row in rows] == ["FAILED", "DEAD", "PARKED"]
    assert {detail["to"] for detail in details.values()} == {"DISCARDED"}
    assert {d["discard_reason"] for d in details.values()} == {"a test of the producer"}
    assert [details[str(row)]["reason"] for row in rows] == [row.reason for row in rows]


def test_audit_of_a_discarded_rollback_names_the_kept_effect(stores: Stores) -> None:
    taken_back = new_event_id()
    unsent = an_event(TxKind.ROLLBACK, of=taken_back)
    put(stores, unsent, OutboxStatus.FAILED)

    discard(stores, letter(stores, dead(stores, of=taken_back)), letter(stores, unsent))

    for entry in audits(stores):
        detail = json.loads(entry["detail"])
        assert detail["causation_id"] == str(taken_back)
        assert f"the effect of event {taken_back} of orders stays" in detail["consequence"]


def test_audit_of_an_unconfirmed_event_names_the_uncertainty(stores: Stores) -> None:
    discard(stores, letter(stores, failed(stores, unconfirmed=True)))

    (entry,) = audits(stores)
    consequence = json.loads(entry["detail"])["consequence"]
    assert "unless the attempt that was never confirmed delivered it" in consequence
    assert "its local rollback was withheld" in consequence


def test_an_event_that_moved_meanwhile_is_left_and_named(stores: Stores) -> None:
    status = OutboxStatus.INIT
    seen = letter(stores, failed(stores))
    with stores.engine.begin() as connection:
        connection.execute(update(stores.tables.outbox).values(status=status.value))

    (left,) = discard(stores, seen)

    assert (left.row, left.done, left.status) == (seen, False, status)
    assert letter(stores, seen.envelope).status is status
    assert audits(stores) == []


def test_a_rollback_that_moved_meanwhile_is_left_and_named(stores: Stores) -> None:
    status = InboxStatus.PROCESSING
    seen = letter(stores, dead(stores))
    with stores.engine.begin() as connection:
        connection.execute(update(stores.tables.inbox).values(status=status.value))

    (left,) = discard(stores, seen)

    assert (left.done, left.status) == (False, status)
    assert audits(stores) == []


def test_each_event_that_moved_is_named_with_its_own_status(stores: Stores) -> None:
    statuses = (OutboxStatus.INIT, OutboxStatus.PROCESSED)
    seen = [letter(stores, failed(stores)) for _ in statuses]
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        for one, status in zip(seen, statuses, strict=True):
            moved = update(o).where(o.c.event_id == one.envelope.id)
            connection.execute(moved.values(status=status.value))

    left = {str(each.row): each.status for each in discard(stores, *seen)}

    assert left == dict(zip(map(str, seen), statuses, strict=True))


def test_each_group_with_a_moved_rollback_is_named_with_status(stores: Stores) -> None:
    rollback = dead(stores)
    put(stores, rollback, InboxStatus.DEAD, consumer_group="ledger")
    seen = letters(stores).find(rollback.id)
    statuses = {"ledger": InboxStatus.PROCESSING, GROUP: InboxStatus.PROCESSED}
    i = stores.tables.inbox
    with stores.engine.begin() as connection:
        for group, status in statuses.items():
            moved = update(i).where(i.c.consumer_group == group)
            connection.execute(moved.values(status=status.value))

    left = {str(each.row): each.status for each in discard(stores, *seen)}

    assert left == {str(row): statuses[row.group or ""] for row in seen}


def test_discarded_record_is_reported_among_parked_ones(stores: Stores) -> None:
    records = [RECORD._replace(offset=offset) for offset in (6, 7, 8)]
    stores.inbox.receive(GROUP, [], [Parked(record=r, reason="no CloudEvent") for r in records])
    at = {"topic": RECORD.topic, "partition": RECORD.partition}
    [discarded] = letters(stores).find_parked(group=GROUP, offset=7, **at)
    discard(stores, discarded)

    [again] = discard(stores, discarded)

    assert (again.done, again.status) == (False, "DISCARDED")


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_rows_of_an_event_are_found_by_group_at_any_position(stores: Stores) -> None:
    rollback = dead(stores)
    put(stores, rollback, InboxStatus.DEAD, consumer_group="ledger")
    with with_settings(stores, **UNINDEXED) as unindexed:
        assert [row.group for row in letters(unindexed).find(rollback.id)] == ["ledger", GROUP]


def test_missing_row_is_named_and_the_others_are_discarded(stores: Stores) -> None:
    record, event = parked(stores), letter(stores, failed(stores))
    with stores.engine.begin() as connection:
        connection.execute(stores.tables.parked.delete())

    done = {str(each.row): (each.done, each.status) for each in discard(stores, record, event)}

    assert done == {str(record): (False, None), str(event): (True, "DISCARDED")}
    assert len(audits(stores)) == 1


def test_second_discard_changes_nothing_and_is_not_audited(stores: Stores) -> None:
    rows = [letter(stores, failed(stores)), letter(stores, dead(stores)), parked(stores)]
    discard(stores, *rows)

    again = discard(stores, *rows)

    assert [(each.done, each.status) for each in again] == [(False, "DISCARDED")] * 3
    assert len(audits(stores)) == len(rows)


def test_discard_covers_the_row_of_one_group(stores: Stores) -> None:
    rollback = dead(stores)
    put(stores, rollback, InboxStatus.DEAD, consumer_group="ledger")
    ledger, orders = letters(stores).find(rollback.id)

    discard(stores, ledger)

    assert [row.status for row in letters(stores).find(rollback.id)] == [
        InboxStatus.DISCARDED,
        InboxStatus.DEAD,
    ]
    assert orders.group == GROUP


def test_discarded_rows_are_not_listed_for_operators(stores: Stores) -> None:
    rows = [letter(stores, failed(stores)), letter(stores, dead(stores)), parked(stores)]
    discard(stores, *rows)

    assert letters(stores).latest(limit=10) == []
    assert letters(stores).parked(limit=10) == []


def test_discarded_event_is_never_claimed_and_blocks_no_key(stores: Stores) -> None:
    # The event FAILED as a retry that blocked its key.
    event = failed(stores, holds_key=True, waiting=True)
    discard(stores, letter(stores, event))
    later = put(stores, an_event(), OutboxStatus.INIT, settled_at=None, attempts=0)

    stores.leases.renew(relay=RELAY, lease=HOUR)
    claim = stores.outbox.claim(relay=RELAY, limit=10)

    assert [each.envelope.id for each in claim.events] == [later.id]


def test_discarded_rollback_is_never_tried_and_blocks_no_key(stores: Stores) -> None:
    rollback = dead(stores)
    discard(stores, letter(stores, rollback))
    later = an_event(TxKind.ROLLBACK, of=new_event_id())
    arrivals = [IncomingEvent(envelope=each, record=RECORD) for each in (rollback, later)]

    receipt = stores.inbox.receive(GROUP, arrivals, [])

    assert receipt.duplicates == 1
    handled = {("orders.placed", TxKind.ROLLBACK)}
    due = stores.inbox.due(GROUP, handled=handled, limit=10)
    assert [each.id for each in due] == [later.id]
    assert letter(stores, rollback).status is InboxStatus.DISCARDED


def test_redelivered_discarded_record_stays_discarded(stores: Stores) -> None:
    record = parked(stores)
    discard(stores, record)

    assert parked(stores).discarded_at is not None
    assert parked(stores, b"another one").discarded_at is None


@pytest.mark.parametrize(
    "other",
    [
        RECORD._replace(topic="orders.placed.rollback"),
        RECORD._replace(partition=2),
        RECORD._replace(offset=8),
        RECORD._replace(value=b"of the recreated topic"),
    ],
    ids=["topic", "partition", "offset", "value"],
)
def test_a_discard_leaves_every_other_record_parked(stores: Stores, other: ReceivedRecord) -> None:
    stores.inbox.receive(GROUP, [], [Parked(record=other, reason="no CloudEvent")])
    discard(stores, parked(stores))

    assert [each.record for each in letters(stores).parked(limit=10)] == [other]
    at = {"topic": other.topic, "partition": other.partition, "offset": other.offset}
    found = [
        each for each in letters(stores).find_parked(group=GROUP, **at) if each.record == other
    ]
    assert [done.done for done in discard(stores, *found)] == [True]


def test_discarded_record_is_reported_next_to_a_parked_one(stores: Stores) -> None:
    first, second = parked(stores), parked(stores, b"another one")
    discard(stores, first)

    again = discard(stores, first, second)

    assert {each.row: (each.done, each.status) for each in again} == {
        first: (False, "DISCARDED"),
        second: (True, "DISCARDED"),
    }


def age(stores: Stores, **columns: datetime) -> None:
    with stores.engine.begin() as connection:
        for table in (stores.tables.outbox, stores.tables.inbox, stores.tables.parked):
            values = {name: when for name, when in columns.items() if name in table.c}
            if values:
                connection.execute(update(table).values(values))


def test_the_purge_counts_the_retention_from_the_discard(stores: Stores) -> None:
    long_ago = datetime.now(UTC) - 3000 * DAY
    event, rollback, record = failed(stores), dead(stores), parked(stores)
    age(stores, settled_at=long_ago, parked_at=long_ago)
    discard(stores, letter(stores, event), letter(stores, rollback), record)
    limits = {"older_than": DAY, "limit": 10}

    assert purge_all(stores, **limits) == 0

    age(stores, settled_at=datetime.now(UTC) - 2 * DAY, discarded_at=datetime.now(UTC) - 2 * DAY)
    assert purge_all(stores, **limits) == 3


def purge_all(stores: Stores, **limits: Any) -> int:
    """Walk to the end, and past the rows that are young by their id."""
    walks = (stores.purge.purge_outbox, stores.purge.purge_inbox)
    removed = sum(walk(**limits).removed for walk in (*walks, *walks))
    return removed + stores.purge.purge_parked(waiting=None, **limits).removed


def test_purge_keeps_a_discarded_event_of_a_waiting_rollback(
    stores: Stores,
) -> None:
    event = failed(stores)
    rollback = dead(stores, of=event.id)
    discard(stores, letter(stores, event))
    age(stores, settled_at=datetime.now(UTC) - 2 * DAY)

    assert purge_all(stores, older_than=DAY, limit=10) == 0

    discard(stores, letter(stores, rollback))
    assert purge_all(stores, older_than=DAY, limit=10) == 1, "nothing asks for the event any more"
    assert letters(stores).find(event.id) == []


def test_waiting_records_are_purged_only_with_a_retention(stores: Stores) -> None:
    parked(stores)
    age(stores, parked_at=datetime.now(UTC) - 2 * DAY)
    limits = {"older_than": HOUR, "limit": 1}

    assert stores.purge.purge_parked(waiting=None, **limits).removed == 0
    assert stores.purge.purge_parked(waiting=3 * DAY, **limits).removed == 0
    assert stores.purge.purge_parked(waiting=DAY, **limits).removed == 1
    assert letters(stores).parked(limit=10) == []


def test_discarded_records_are_purged_before_waiting_ones(stores: Stores) -> None:
    discarded, _waiting = parked(stores), parked(stores, b"another one")
    discard(stores, discarded)
    age(stores, parked_at=datetime.now(UTC) - 2 * DAY)
    with stores.engine.begin() as connection:
        p = stores.tables.parked.c
        old = update(stores.tables.parked).where(p.discarded_at.is_not(None))
        connection.execute(old.values(discarded_at=datetime.now(UTC) - DAY))

    limits = {"older_than": HOUR, "limit": 10}
    assert stores.purge.purge_parked(waiting=3 * DAY, **limits).removed == 1
    assert [each.record.value for each in letters(stores).parked(limit=10)] == [b"another one"]


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_purge_does_not_wait_for_a_record_being_discarded(stores: Stores) -> None:
    busy, free = parked(stores), parked(stores, b"another one")
    age(stores, parked_at=datetime.now(UTC) - 2 * DAY)
    p = stores.tables.parked
    limits = {"older_than": HOUR, "waiting": DAY, "limit": 10}
    with stores.engine.begin() as connection:
        lock = select(p.c.digest).where(p.c.digest == busy.digest).with_for_update()
        connection.execute(lock)
        with with_settings(stores, lock_timeout="1s") as impatient:
            assert impatient.purge.purge_parked(**limits).removed == 1
    assert [each.digest for each in letters(stores).parked(limit=10)] == [busy.digest]
    assert free.digest != busy.digest


def test_the_audit_is_purged_from_its_oldest_entry_on(stores: Stores) -> None:
    discard(stores, *(letter(stores, failed(stores)) for _ in range(3)))
    old = stores.tables.audit.c.id < 3
    with stores.engine.begin() as connection:
        aged = update(stores.tables.audit).where(old)
        connection.execute(aged.values(at=datetime.now(UTC) - 2 * DAY))

    batches = [stores.purge.purge_audit(older_than=DAY, limit=1) for _ in range(3)]

    assert [(batch.removed, batch.more) for batch in batches] == [(1, True), (1, True), (0, False)]
    assert [entry["id"] for entry in audits(stores)] == [3]


def test_only_failed_and_dead_rows_can_be_discarded() -> None:
    assert DISCARD == {
        OutboxStatus.FAILED: OutboxStatus.DISCARDED,
        InboxStatus.DEAD: InboxStatus.DISCARDED,
    }
