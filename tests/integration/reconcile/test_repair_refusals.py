"""Events that a repair could send and leaves to an operator: real databases and workers."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from shieldtx import Event
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.expectations import ExpectedGroup, Others
from shieldtx.reconcile.repair.decisions import (
    AMONG_OTHERS,
    DISCARDED,
    FOR_OTHERS,
    OVERTAKEN,
    TAKEN_BACK,
    TOO_OLD,
    UNDONE_LOCALLY,
    Policy,
)
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.dead_letter_rows import ParkedRecord
from shieldtx.store.discards import SqlDiscards
from shieldtx.store.tables import tables
from tests.support.repair_scenarios import (
    BOTH,
    Pair,
    absent,
    audited,
    before_statements,
    listed,
    lose,
    owed,
    rows,
    write_one_by_one,
)
from tests.support.service import Service, drain, drain_and_close

MISSING = Verdict.MISSING_DOWNSTREAM
CAREFUL = Policy(services=BOTH)
NAMED = Policy(services=BOTH, named=frozenset({MISSING}))
OUT_OF_ORDER = Policy(services=BOTH, out_of_order=True)
ABSENT = Verdict.ABSENT_FROM_TOPIC
EVERYTHING = Policy(services=BOTH, named=frozenset({MISSING, ABSENT}))
HANDED_OVER = (MISSING, RepairAction.HAND_OVER)
PUBLISHED = (ABSENT, RepairAction.PUBLISH_AGAIN)


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


@pytest.mark.parametrize("policy", [CAREFUL, NAMED, OUT_OF_ORDER])
@pytest.mark.parametrize("compensated", [True, False])
def test_an_event_that_was_taken_back_is_not_delivered(
    pair: Pair, policy: Policy, compensated: bool
):
    pair.refuse_all(2)
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'mail'")
    if not compensated:  # as if the rollbacks had not arrived yet
        pair.orders.execute("DELETE FROM shield_inbox")

    report = pair.repair(pair.missing("mail"), policy=policy)
    pair.work()

    assert report.refused == {(MISSING, TAKEN_BACK): 2}
    assert pair.stock.effects("mail") == []
    assert pair.orders.outbox() == {"PROCESSED": 2}


@pytest.mark.parametrize("status", ["INIT", "DEAD"])
def test_pending_rollback_prevents_the_delivery(pair: Pair, status: str):
    """As the rollback of a service that is in no configuration."""
    pair.refuse_all(1)
    settled = "now()" if status == "DEAD" else "NULL"
    pair.orders.execute(
        f"UPDATE shield_inbox SET status = '{status}', settled_at = {settled}, "
        "compensated_id = NULL"
    )
    pair.stock.execute("DELETE FROM shield_outbox")
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'mail'")

    report = pair.repair(pair.missing("mail"), policy=CAREFUL)

    assert report.refused == {(MISSING, TAKEN_BACK): 1}


def test_a_failed_event_that_was_taken_back_is_not_replayed(pair: Pair):
    pair.refuse_all(1)
    pair.orders.execute("UPDATE shield_outbox SET status = 'FAILED', last_error = 'unclear'")
    (failed,) = pair.sent()
    named = Policy(services=BOTH, named=frozenset({Verdict.PARKED}))

    report = pair.repair([listed(Verdict.PARKED, sent=failed, group="mail")], policy=named)

    assert report.refused == {(Verdict.PARKED, TAKEN_BACK): 1}
    assert pair.orders.outbox() == {"FAILED": 1}


@pytest.mark.parametrize("dry_run", [True, False])
def test_old_unconfirmed_failed_event_is_not_replayed(pair: Pair, dry_run: bool):
    """A group may have applied it, and purged its row."""
    write_one_by_one(pair, 3)
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', settled_at = now(), last_error = 'timeout', "
        "unconfirmed = true, "
        "created_at = now() - make_interval(days => CASE key WHEN 'k1' THEN 9 ELSE 1 END)"
    )
    week = datetime.now(UTC) - timedelta(days=7)
    parked = [listed(Verdict.PARKED, sent=sent) for sent in pair.sent()]
    named = Policy(services=BOTH, named=frozenset({Verdict.PARKED}), young_since={"stock": week})

    report = pair.repair(parked, policy=named, dry_run=dry_run)

    assert report.refused == {(Verdict.PARKED, TOO_OLD): 1}
    assert report.repaired == {(Verdict.PARKED, RepairAction.REPLAY_EVENT): Repaired(done=2)}


@pytest.mark.parametrize("name", ["orders", "orders.placed"], ids=["topic", "type"])
@pytest.mark.parametrize("unconfirmed", [True, False])
def test_failed_event_of_a_shared_topic_is_not_replayed(pair: Pair, unconfirmed: bool, name: str):
    """What a service outside the configuration has purged is unknown."""
    pair.write(1)
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', last_error = 'timeout', settled_at = now(), "
        "topic = 'orders', unconfirmed = :unconfirmed",
        unconfirmed=unconfirmed,
    )
    named = Policy(
        services=BOTH,
        named=frozenset({Verdict.PARKED}),
        for_others={"orders": Others.named(name)},
    )

    report = pair.repair([listed(Verdict.PARKED, sent=pair.sent()[0])], policy=named)

    why = FOR_OTHERS if unconfirmed else UNDONE_LOCALLY
    assert report.refused == {(Verdict.PARKED, why): 1}


def test_an_event_whose_rollback_was_discarded_is_delivered(pair: Pair):
    pair.refuse_all(1)
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.stock.execute("UPDATE shield_outbox SET status = 'DISCARDED'")
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'mail'")

    report = pair.repair(pair.missing("mail"), policy=CAREFUL)
    pair.work()

    assert report.refused == {}
    assert len(pair.stock.effects("mail")) == 1


def lose_first(pair: Pair, number: int, group: str) -> None:
    """Lose the inbox rows of the events that were written first."""
    lose(pair, group, *(sent["event_id"] for sent in pair.sent()[:number]))


def write_at_once(pair: Pair, number: int) -> None:
    """Write events of keys 0, 1, 2, 0 and so on, which all have the same time."""
    pair.write(number)
    pair.orders.execute("UPDATE shield_outbox SET created_at = now()")


def test_delivery_after_later_events_of_a_key_needs_permission(pair: Pair):
    write_one_by_one(pair, 5)
    pair.work()
    lose_first(pair, 3, "stock")
    missing = pair.missing("stock")[:3]

    for dry_run in (True, False):
        report = pair.repair(missing, policy=NAMED, dry_run=dry_run)
        assert report.refused == {(MISSING, OVERTAKEN): 2}
        assert report.repaired == {HANDED_OVER: Repaired(done=1)}
    pair.work()
    assert len(pair.stock.effects("stock")) == 3

    for dry_run in (True, False):
        report = pair.repair(missing, policy=OUT_OF_ORDER, dry_run=dry_run)
        assert report.refused == {}
        assert report.repaired == {HANDED_OVER: Repaired(done=2, needless=1, out_of_order=2)}
    pair.work()
    assert len(pair.stock.effects("stock")) == 5


def in_order(pair: Pair, group: str = "stock") -> bool:
    """Return whether an inbox has all events, and the events of each key in outbox order."""
    received = [(row["key"], row["event_id"]) for row in pair.received(group)]
    written = [(row["key"], row["event_id"]) for row in pair.sent()]
    assert sorted(received) == sorted(written)
    return all(
        [event for k, event in received if k == key] == [event for k, event in written if k == key]
        for key in {key for key, _ in written}
    )


@pytest.mark.parametrize("write", [write_one_by_one, write_at_once])
def test_missing_events_of_a_key_arrive_in_order_of_any_listing(
    pair: Pair, write: Callable[[Pair, int], None]
):
    """The second part of the rows has events that are earlier than events of the first part."""
    write(pair, 12)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")

    report = pair.repair(missing[::-1], policy=CAREFUL, batch=2, looked_up=3)

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=12)}
    assert in_order(pair)


@pytest.mark.parametrize("write", [write_one_by_one, write_at_once])
def test_the_rest_of_a_key_is_handed_over_after_an_interruption(
    pair: Pair, write: Callable[[Pair, int], None]
):
    write(pair, 12)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    pair.repair(missing[:5], policy=CAREFUL)

    report = pair.repair(missing, policy=CAREFUL, batch=2, looked_up=3)

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=7, needless=5)}
    assert in_order(pair)


def test_outbox_orders_events_of_the_same_time(pair: Pair):
    write_at_once(pair, 6)
    pair.work()
    written = [row["event_id"] for row in pair.sent()]
    lose(pair, "stock", written[0], written[4], written[5])
    # The other event of k2 may have been later: its order is no longer known.
    pair.orders.execute("DELETE FROM shield_outbox WHERE event_id = :event", event=written[2])
    lost = {written[0], written[4], written[5]}

    report = pair.repair(
        [row for row in pair.missing("stock") if row.event_id in lost], policy=CAREFUL
    )

    assert report.refused == {(MISSING, OVERTAKEN): 2}
    assert report.repaired == {HANDED_OVER: Repaired(done=1)}
    assert pair.received("stock")[-1]["event_id"] == written[4]


def test_event_too_late_for_one_group_is_handed_over_to_another(pair: Pair):
    write_one_by_one(pair, 4)
    pair.work()
    lose_first(pair, 1, "stock")
    pair.lose_inbox_rows("mail")

    report = pair.repair(pair.missing("stock")[:1] + pair.missing("mail"), policy=CAREFUL)

    assert report.refused == {(MISSING, OVERTAKEN): 1}
    assert report.repaired == {HANDED_OVER: Repaired(done=4)}
    assert in_order(pair, "mail")


@pytest.mark.parametrize(
    "change",
    [
        "key = NULL",
        "key = 'another'",
        "topic = 'orders.paid'",
        "source = 'billing'",
        "consumer_group = 'another'",
        "tx_kind = 'ROLLBACK'",
    ],
)
def test_event_of_another_key_topic_or_group_overtakes_nothing(pair: Pair, change: str):
    write_one_by_one(pair, 4)
    pair.work()
    first, *_, last = pair.sent()
    assert first["key"] == last["key"]
    pair.stock.execute(
        "DELETE FROM shield_inbox WHERE consumer_group = 'mail' OR event_id <> :last",
        last=last["event_id"],
    )
    missing = pair.missing("stock")[:1]
    tried = pair.repair(missing, policy=CAREFUL, dry_run=True)
    assert tried.refused == {(MISSING, OVERTAKEN): 1}

    pair.stock.execute(f"UPDATE shield_inbox SET {change}")

    assert pair.repair(missing, policy=CAREFUL).repaired == {HANDED_OVER: Repaired(done=1)}


def test_event_is_handed_over_before_later_queued_events(pair: Pair):
    write_one_by_one(pair, 4)
    pair.work()
    last = pair.sent()[-1]["event_id"]
    pair.stock.execute("DELETE FROM shield_inbox")
    pair.stock.execute("DELETE FROM effects")
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'INIT', settled_at = NULL WHERE event_id = :event",
        event=last,
    )

    report = pair.repair(pair.missing("stock")[:3], policy=CAREFUL)
    pair.work()

    assert report.repaired == {HANDED_OVER: Repaired(done=3)}
    assert in_order(pair)
    handled = [e for (e,) in pair.stock.rows("SELECT event_id FROM effects WHERE what = 'stock'")]
    assert handled.index(str(last)) > handled.index(str(pair.sent()[0]["event_id"]))


@pytest.mark.parametrize("dry_run", [True, False])
def test_rollback_is_published_again_after_later_events(pair: Pair, dry_run: bool):
    """A rollback is ordered only after the event that it takes back, not within its key."""
    pair.refuse_all(4)
    first = rows(pair.stock, "SELECT * FROM shield_outbox ORDER BY seq LIMIT 1")[0]
    pair.orders.execute("DELETE FROM shield_inbox WHERE event_id = :event", event=first["event_id"])
    pair.orders.execute("UPDATE shield_inbox SET compensated_id = NULL, status = 'DISCARDED'")

    report = pair.repair(
        [listed(MISSING, sent=first, group="orders")], policy=CAREFUL, dry_run=dry_run
    )

    assert report.repaired == {(MISSING, RepairAction.PUBLISH_AGAIN): Repaired(done=1)}


# --- events that an operator has discarded --------------------------------------------------------


def park(pair: Pair, number: int, group: str = "stock") -> list[ParkedRecord]:
    """Write events that a group parks, because its database refuses them for a while."""
    refusal = f"CHECK (consumer_group <> '{group}') NOT VALID"
    pair.stock.execute(f"ALTER TABLE shield_inbox ADD CONSTRAINT picky {refusal}")
    write_one_by_one(pair, number)
    pair.work()
    pair.stock.execute("ALTER TABLE shield_inbox DROP CONSTRAINT picky")
    letters = pair.stock.app.stores.dead_letters()
    parked = letters.parked(limit=100, group=group)
    assert len(parked) == number
    return sorted(parked, key=lambda each: json.loads(each.record.value or b"{}")["n"])


def discard(pair: Pair, *records: ParkedRecord) -> None:
    store = SqlDiscards(pair.stock.engine, tables())
    done = store.discard(records, who="ann", reason="closed by hand")
    assert all(each.done for each in done)


@pytest.mark.parametrize("policy", [CAREFUL, NAMED, OUT_OF_ORDER])
@pytest.mark.parametrize("dry_run", [True, False])
def test_an_event_whose_record_was_discarded_is_not_handed_over(
    pair: Pair, policy: Policy, dry_run: bool
):
    parked = park(pair, 3)
    discard(pair, parked[1])

    report = pair.repair(pair.missing("stock"), policy=policy, dry_run=dry_run)

    assert report.refused == {(MISSING, DISCARDED): 1}
    assert report.repaired == {HANDED_OVER: Repaired(done=2)}
    if not dry_run:
        discarded = pair.sent()[1]["event_id"]
        assert discarded not in {row["event_id"] for row in pair.received("stock")}
        assert len(pair.stock.app.stores.dead_letters().parked(limit=9)) == 2, "they stay"


def test_discard_between_two_batches_prevents_the_delivery(pair: Pair):
    parked = park(pair, 4)

    def come_between(text: str) -> None:
        if text.startswith("INSERT INTO shield_audit") and not done:
            done.append(text)
            discard(pair, parked[3])

    done: list[str] = []
    with before_statements(come_between):
        report = pair.repair(pair.missing("stock"), policy=CAREFUL, batch=2)

    assert report.refused == {(MISSING, DISCARDED): 1}
    assert report.repaired == {HANDED_OVER: Repaired(done=3)}


@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        ("consumer_group = 'mail'", False),
        ("discarded_at = NULL", False),
        ("record_headers = replace(record_headers, 'b3JkZXJz', 'd2Vi')", False),
        ("record_headers = replace(record_headers, 'ce_id', 'x_id')", False),
        ("record_headers = replace(record_headers, 'ce_source', 'x_source')", True),
        ("record_headers = replace(record_headers, '\"b3JkZXJz\"', '\"/w==\"')", False),
        ("record_offset = record_offset + 1000", True),
    ],
)
def test_discard_covers_one_event_of_one_source_in_one_group(
    pair: Pair, change: str, is_refused: bool
):
    discard(pair, *park(pair, 1))
    pair.stock.execute(f"UPDATE shield_parked SET {change}")

    report = pair.repair(pair.missing("stock"), policy=CAREFUL)

    assert report.refused == ({(MISSING, DISCARDED): 1} if is_refused else {})


@pytest.mark.parametrize("dry_run", [True, False])
def test_event_that_one_group_discarded_is_not_published_again(pair: Pair, dry_run: bool):
    """All groups would receive the copy."""
    discard(pair, park(pair, 2, "mail")[0])
    policy = replace(EVERYTHING, out_of_order=True)

    report = pair.repair(pair.absent(), policy=policy, dry_run=dry_run)

    assert report.refused == {(ABSENT, DISCARDED): 1}
    assert report.repaired == {PUBLISHED: Repaired(done=1)}


@pytest.mark.parametrize(("service", "group"), [("orders", "orders"), ("stock", "mail")])
@pytest.mark.parametrize("dry_run", [True, False])
def test_rollback_that_a_group_discarded_is_not_published_again(
    pair: Pair, service: str, group: str, dry_run: bool
):
    """All groups would receive the copy, also groups that compensate events of other services."""
    pair.refuse_all(1)
    pair.orders.execute("DELETE FROM shield_inbox")
    (rollback, *_) = rows(pair.stock, "SELECT * FROM shield_outbox ORDER BY seq")
    headers = [("ce_id", str(rollback["event_id"])), ("ce_source", "stock")]
    insert_discard(getattr(pair, service), group, headers)

    report = pair.repair(
        [listed(MISSING, sent=rollback, group="orders")], policy=CAREFUL, dry_run=dry_run
    )

    assert report.refused == {(MISSING, DISCARDED): 1}


def insert_discard(service: Service, group: str, headers: Sequence[tuple[str, str | None]]) -> None:
    """Give a group a discarded record with these headers."""
    encoded = [
        [name, value and base64.b64encode(value.encode()).decode()] for name, value in headers
    ]
    service.execute(
        "INSERT INTO shield_parked (consumer_group, topic, record_partition, record_offset, "
        "reason, record_headers, parked_at, discarded_at) "
        "VALUES (:group, 't', 0, 0, 'r', :headers, now(), now())",
        group=group,
        headers=json.dumps(encoded),
    )


@pytest.mark.parametrize("source", ["orders", "web", None])
def test_first_header_with_a_value_of_a_discarded_record_counts(pair: Pair, source: str | None):
    write_one_by_one(pair, 1)
    pair.work()
    pair.lose_inbox_rows("stock")
    event_id = str(pair.sent()[0]["event_id"])
    headers = [("ce_id", None), ("ce_source", None), ("ce_source", source), ("ce_id", event_id)]
    insert_discard(pair.stock, "stock", [*headers, ("ce_id", "x" * 36), ("ce_source", "mail")])

    report = pair.repair(pair.missing("stock"), policy=CAREFUL)

    assert report.refused == ({(MISSING, DISCARDED): 1} if source == "orders" else {})


# --- times outside of the range of Python ---------------------------------------------------------


@pytest.mark.parametrize("time", ["infinity", "-infinity", "0044-03-15 BC", "99999-01-01"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_time_outside_of_pythons_range_stops_no_repair(pair: Pair, time: str, dry_run: bool):
    write_one_by_one(pair, 6)
    pair.work()
    lose_first(pair, 3, "stock")
    missing, absent = pair.missing("stock")[:3], pair.absent()
    first = missing[0].event_id
    pair.orders.execute(f"UPDATE shield_outbox SET created_at = '{time}' WHERE key = 'k0'")
    pair.stock.execute(f"UPDATE shield_inbox SET event_time = '{time}' WHERE key = 'k0'")
    pair.orders.execute(
        f"UPDATE shield_outbox SET settled_at = '{time}' WHERE event_id = :first", first=first
    )
    is_late = time in {"infinity", "99999-01-01"}
    nearest = datetime(9998, 12, 31, tzinfo=UTC) if is_late else datetime(1, 1, 2, tzinfo=UTC)
    listed_ = [replace(row, published_at=nearest) for row in (missing[0], absent[0])]

    report = pair.repair(
        [*listed_, *missing[1:], *absent[1:]],
        policy=replace(EVERYTHING, out_of_order=True),
        dry_run=dry_run,
    )

    assert report.refused == {}
    assert report.repaired == {
        HANDED_OVER: Repaired(done=3, out_of_order=3),
        PUBLISHED: Repaired(done=6),
    }


@pytest.mark.parametrize("time", ["infinity", "-infinity"])
def test_missing_rollback_is_raised_for_any_time_of_its_event(pair: Pair, time: str):
    pair.refuse_all(1)
    pair.stock.execute("DELETE FROM shield_outbox")
    (received,) = pair.received("stock")
    owed = listed(Verdict.NEITHER_EFFECT_NOR_COMPENSATION, received=received)
    pair.stock.execute(f"UPDATE shield_inbox SET event_time = '{time}'")

    report = pair.repair([owed], policy=CAREFUL)

    action = (Verdict.NEITHER_EFFECT_NOR_COMPENSATION, RepairAction.RAISE_ROLLBACK)
    assert report.repaired == {action: Repaired(done=1)}


# --- within a step of the clock ------------------------------------------------------------------


def write_with_clocks(pair: Pair, *seconds: float) -> None:
    """Write events of one key, with clocks that differ from the first by the given seconds."""
    for _ in seconds:
        with pair.orders.transaction() as session:
            pair.orders.app.outbox.add(session, Event(type="orders.placed", key="k"))
    for row, ahead in zip(pair.sent(), seconds, strict=True):
        pair.orders.execute(
            "UPDATE shield_outbox SET created_at = now() + make_interval(secs => :ahead) "
            "WHERE event_id = :event",
            ahead=ahead,
            event=row["event_id"],
        )
    pair.work()


@pytest.mark.parametrize("ahead", [-4, 0, 4, 60])
def test_later_event_of_a_slow_clock_still_overtakes(pair: Pair, ahead: float):
    write_with_clocks(pair, 0, ahead)
    lose_first(pair, 1, "stock")

    report = pair.repair(pair.missing("stock")[:1], policy=CAREFUL)

    assert report.refused == {(MISSING, OVERTAKEN): 1}


@pytest.mark.parametrize("ahead", [-60, -4, 0, 4, 60])
def test_earlier_event_of_a_fast_clock_overtakes_nothing(pair: Pair, ahead: float):
    write_with_clocks(pair, ahead, 0)
    lose(pair, "stock", pair.sent()[1]["event_id"])

    report = pair.repair(pair.missing("stock")[1:], policy=CAREFUL)

    assert report.repaired == {HANDED_OVER: Repaired(done=1)}
    assert in_order(pair)


# --- absent from the topic -----------------------------------------------------------------------


def test_absent_events_are_handed_over_before_being_published(pair: Pair):
    """A relay and consumers run during the repair."""
    named = [ExpectedGroup(name=name, topics=("orders.placed",)) for name in ("stock", "mail")]
    with_groups = replace(EVERYTHING, groups={"stock": named})
    write_one_by_one(pair, 6)
    pair.work()
    pair.lose_inbox_rows("stock", "mail")
    listed_ = [*absent(pair, 0, 3, 4, 5), *pair.missing("stock", "mail")]
    tried = pair.repair(listed_, policy=with_groups, batch=2, looked_up=2, dry_run=True)

    with before_statements(working_before("INSERT INTO shield_inbox", pair)):
        report = pair.repair(listed_, policy=with_groups, batch=2, looked_up=2)
    pair.work()

    assert report == tried
    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=12), PUBLISHED: Repaired(done=4)}
    assert in_order(pair)
    assert in_order(pair, "mail")
    assert Counter(pair.stock.effects()) == Counter({"k0": 4, "k1": 4, "k2": 4})


def working_before(statement: str, pair: Pair) -> Callable[[str], None]:
    """Run all workers once before a statement, as quicker workers would."""
    worked: list[str] = []

    def look(text: str) -> None:
        if text.startswith(statement) and not worked:
            worked.append(text)
            pair.work()

    return look


@pytest.mark.parametrize("dry_run", [True, False])
def test_publishing_after_later_events_of_a_key_needs_permission(pair: Pair, dry_run: bool):
    write_one_by_one(pair, 5)
    pair.work()
    lose_first(pair, 3, "mail")

    report = pair.repair(absent(pair, 0, 1, 2), policy=EVERYTHING, dry_run=dry_run)
    assert report.refused == {(ABSENT, OVERTAKEN): 2}
    assert report.repaired == {PUBLISHED: Repaired(done=1)}

    anyhow = replace(EVERYTHING, out_of_order=True)
    report = pair.repair(absent(pair, 0, 1, 2), policy=anyhow, dry_run=dry_run)
    assert report.refused == {}
    needless = 0 if dry_run else 1
    assert report.repaired == {
        PUBLISHED: Repaired(done=3 - needless, needless=needless, out_of_order=2)
    }


def test_event_all_groups_have_is_published_after_later_ones(pair: Pair):
    write_one_by_one(pair, 6)
    pair.work()

    report = pair.repair(absent(pair, 0, 1), policy=EVERYTHING)
    pair.work()

    assert report.repaired == {PUBLISHED: Repaired(done=2)}
    assert len(pair.stock.effects()) == 12


@pytest.mark.parametrize(
    "change",
    ["status = 'PROCESSED'", "status = 'PROCESSING'", "status = 'INIT'", "status = 'FAILED'"],
)
def test_copy_is_refused_before_a_sent_event_not_read_yet(pair: Pair, change: str):
    write_one_by_one(pair, 4)
    pair.work()
    written = [row["event_id"] for row in pair.sent()]
    lose(pair, "stock", written[0], written[3])
    pair.orders.execute(f"UPDATE shield_outbox SET {change} WHERE event_id = :e", e=written[3])

    report = pair.repair(absent(pair, 0, 1), policy=EVERYTHING)

    is_sent = "FAILED" not in change
    assert report.refused == ({(ABSENT, AMONG_OTHERS): 1} if is_sent else {})
    assert report.repaired == {PUBLISHED: Repaired(done=1 if is_sent else 2)}


@pytest.mark.parametrize("size", [1, 3])
def test_copies_of_one_key_that_a_group_lacks_are_handed_over(pair: Pair, size: int):
    """A relay that starts its claims after the first of them sends the second one first."""
    write_one_by_one(pair, 6)
    pair.work()
    written = [row["event_id"] for row in pair.sent()]
    lose(pair, "stock", written[2], written[3], written[5])
    both = absent(pair, 2, 3, 5)
    sizes = {"batch": size, "looked_up": size, "compared": size}

    report = pair.repair(both, policy=EVERYTHING, **sizes)
    assert report.refused == {(ABSENT, AMONG_OTHERS): 2}
    assert report.repaired == {PUBLISHED: Repaired(done=1)}

    missing = [row for row in pair.missing("stock") if row.event_id in {written[2], written[5]}]
    report = pair.repair([*both, *missing], policy=EVERYTHING, **sizes)
    assert report.refused == {}
    assert report.repaired == {
        HANDED_OVER: Repaired(done=2),
        PUBLISHED: Repaired(done=2, needless=1),
    }
    pair.work()
    assert len(pair.stock.effects("stock")) == 6


@pytest.mark.parametrize(
    ("groups", "is_refused"),
    [
        ({}, False),
        ({"stock": [ExpectedGroup(name="mail", topics=("orders.placed",))]}, True),
        ({"stock": [ExpectedGroup(name="mail", event_types=("orders.paid",))]}, False),
    ],
)
def test_group_that_does_not_receive_an_event_blocks_no_other(
    pair: Pair, groups: dict[str, Sequence[ExpectedGroup]], is_refused: bool
):
    write_one_by_one(pair, 4)
    pair.work()
    lose_first(pair, 1, "mail")
    pair.stock.execute(
        "UPDATE shield_inbox SET event_type = 'orders.paid' WHERE consumer_group = 'mail'"
    )

    report = pair.repair(absent(pair, 0), policy=replace(EVERYTHING, groups=groups))

    assert report.refused == ({(ABSENT, OVERTAKEN): 1} if is_refused else {})


def test_events_of_all_parts_are_published_in_outbox_order(pair: Pair):
    write_one_by_one(pair, 9)
    pair.work()

    pair.repair(pair.absent()[::-1], policy=EVERYTHING, batch=2, looked_up=3)

    assert audited(pair.orders) == [str(row["event_id"]) for row in pair.sent()]


@pytest.mark.parametrize("dry_run", [True, False])
def test_event_sent_again_has_the_age_of_its_first_copy(pair: Pair, dry_run: bool):
    write_one_by_one(pair, 3)
    pair.work()
    pair.orders.execute("UPDATE shield_outbox SET created_at = now() - interval '9 days'")
    pair.orders.execute("UPDATE shield_outbox SET unconfirmed = key = 'k0'")
    week = datetime.now(UTC) - timedelta(days=7)
    policy = replace(EVERYTHING, young_since={"stock": week})

    report = pair.repair(pair.absent(), policy=policy, dry_run=dry_run)

    assert report.refused == {(ABSENT, TOO_OLD): 1}
    assert report.repaired == {PUBLISHED: Repaired(done=2)}


def test_rollback_sent_again_has_the_age_of_its_first_copy(pair: Pair):
    pair.refuse_all(2)
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.stock.execute("UPDATE shield_outbox SET created_at = now() - interval '9 days'")
    rollbacks = rows(pair.stock, "SELECT * FROM shield_outbox ORDER BY seq")
    again = rollbacks[0]["event_id"]
    pair.stock.execute(
        "UPDATE shield_outbox SET unconfirmed = true WHERE event_id = :event", event=again
    )
    week = datetime.now(UTC) - timedelta(days=7)
    missing = [listed(MISSING, sent=rollback, group="orders") for rollback in rollbacks]

    report = pair.repair(missing, policy=replace(CAREFUL, young_since={"orders": week}))

    assert report.refused == {(MISSING, TOO_OLD): 1}


# --- while the repair runs -----------------------------------------------------------------------


def test_later_event_that_arrives_during_a_hand_over_is_seen(pair: Pair):
    """One scan serves all parts; later arrivals are queried with each part."""
    write_one_by_one(pair, 6)
    pair.work()
    pair.lose_inbox_rows("stock", "mail")
    missing = pair.missing("stock")
    with pair.orders.transaction() as session:
        pair.orders.app.outbox.add(session, Event(type="orders.placed", key="k2"))

    with before_statements(working_before("INSERT INTO shield_inbox", pair)):
        report = pair.repair(missing, policy=CAREFUL, batch=1, looked_up=1)

    assert report.refused == {(MISSING, OVERTAKEN): 2}
    assert report.repaired == {HANDED_OVER: Repaired(done=4)}


@pytest.mark.parametrize("dry_run", [True, False])
def test_repaired_events_overtake_nothing_after_a_clock_set_back(pair: Pair, dry_run: bool):
    write_with_clocks(pair, 60, 0, 120, -60)
    pair.lose_inbox_rows("stock")
    sizes = {"batch": 1, "looked_up": 1, "compared": 1}

    report = pair.repair(pair.missing("stock"), policy=CAREFUL, dry_run=dry_run, **sizes)

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=4)}
    assert dry_run or in_order(pair)


def test_late_event_is_refused_despite_a_clock_set_back_later(pair: Pair):
    write_with_clocks(pair, 0, 1, 600, -60)
    lose(pair, "stock", pair.sent()[1]["event_id"])

    report = pair.repair(pair.missing("stock")[1:2], policy=CAREFUL)

    assert report.refused == {(MISSING, OVERTAKEN): 1}


WITH_MAIL = replace(
    EVERYTHING, groups={"stock": [ExpectedGroup(name="mail", topics=("orders.placed",))]}
)


def after_the_first_batch(act: Callable[[], None]) -> Callable[[str], None]:
    """Act once, after the first batch is stored, and before its audit."""
    done: list[str] = []

    def look(text: str) -> None:
        if text.startswith("INSERT INTO shield_audit") and not done:
            done.append(text)
            act()

    return look


def write_later_one_of_k2(pair: Pair, *groups: str) -> None:
    """Write one more event of a key, and let groups receive it."""
    with pair.orders.transaction() as session:
        pair.orders.app.outbox.add(session, Event(type="orders.placed", key="k2"))
    if groups:
        consumers = [pair.stock.app.build_consumer(group) for group in groups]
        drain_and_close(pair.orders.relay(), *consumers)


@pytest.mark.parametrize("policy", [CAREFUL, OUT_OF_ORDER])
def test_later_event_between_two_batches_of_a_hand_over_is_seen(pair: Pair, policy: Policy):
    write_one_by_one(pair, 3)
    pair.work()
    pair.lose_inbox_rows("stock")

    look = after_the_first_batch(partial(write_later_one_of_k2, pair, "stock"))
    with before_statements(look):
        report = pair.repair(pair.missing("stock"), policy=policy, batch=1)

    if policy.out_of_order:
        assert report.repaired == {HANDED_OVER: Repaired(done=3, out_of_order=1)}
    else:
        assert report.refused == {(MISSING, OVERTAKEN): 1}
        assert report.repaired == {HANDED_OVER: Repaired(done=2)}


@pytest.mark.parametrize("groups", [("mail",), ()])
@pytest.mark.parametrize("out_of_order", [True, False])
def test_later_event_between_two_batches_of_copies_is_seen(
    pair: Pair, groups: Sequence[str], out_of_order: bool
):
    """The group has applied the event, or the event is queued."""
    write_one_by_one(pair, 3)
    pair.work()
    pair.lose_inbox_rows("mail")
    policy = replace(WITH_MAIL, out_of_order=out_of_order)

    look = after_the_first_batch(partial(write_later_one_of_k2, pair, *groups))
    with before_statements(look):
        report = pair.repair(pair.absent(), policy=policy, batch=1)

    if out_of_order:
        assert report.repaired == {PUBLISHED: Repaired(done=3, out_of_order=1)}
    else:
        assert report.refused == {(ABSENT, OVERTAKEN if groups else AMONG_OTHERS): 1}
        assert report.repaired == {PUBLISHED: Repaired(done=2)}


def test_discard_between_two_batches_of_copies_prevents_the_copy(pair: Pair):
    parked = park(pair, 3)

    look = after_the_first_batch(lambda: discard(pair, parked[2]))
    with before_statements(look):
        report = pair.repair(pair.absent(), policy=EVERYTHING, batch=1)

    assert report.refused == {(ABSENT, DISCARDED): 1}
    assert report.repaired == {PUBLISHED: Repaired(done=2)}


def test_copy_is_published_despite_later_events_of_other_keys(pair: Pair):
    write_one_by_one(pair, 2)
    pair.work()
    pair.lose_inbox_rows("mail")

    look = after_the_first_batch(partial(write_later_one_of_k2, pair, "mail"))
    with before_statements(look):
        report = pair.repair(pair.absent(), policy=WITH_MAIL, batch=1)

    assert report.repaired == {PUBLISHED: Repaired(done=2)}


# --- a dry run counts the same rows as the repair -------------------------------------------------


def mail_applies_what_stock_gives_up(pair: Pair, number: int) -> None:
    """Write events that mail applies and stock gives up, with their rollbacks in the outbox."""
    pair.write(number)
    drain(pair.orders.relay(), pair.stock.app.build_consumer("mail"))
    pair.refuse = True
    drain(pair.stock.app.build_consumer("stock"))
    pair.refuse = False


@pytest.mark.parametrize("dry_run", [True, False])
def test_event_whose_missing_rollback_is_raised_is_not_delivered(pair: Pair, dry_run: bool):
    mail_applies_what_stock_gives_up(pair, 2)
    pair.stock.execute("DELETE FROM shield_outbox")
    pair.lose_inbox_rows("mail")
    owed_ = [
        listed(Verdict.NEITHER_EFFECT_NOR_COMPENSATION, received=received)
        for received in pair.received("stock")
    ]

    report = pair.repair([*pair.missing("mail"), *owed_], policy=CAREFUL, dry_run=dry_run)

    action = (Verdict.NEITHER_EFFECT_NOR_COMPENSATION, RepairAction.RAISE_ROLLBACK)
    assert report.refused == {(MISSING, TAKEN_BACK): 2}
    assert report.repaired == {action: Repaired(done=2)}


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("batch", [1, 500])
def test_rollback_that_two_services_lack_is_published_once(pair: Pair, dry_run: bool, batch: int):
    mail_applies_what_stock_gives_up(pair, 2)
    drain(pair.stock.relay())
    pair.stock.execute("UPDATE shield_outbox SET created_at = now() - interval '9 days'")
    rollbacks = rows(pair.stock, "SELECT * FROM shield_outbox ORDER BY seq")
    lacking = [listed(MISSING, sent=rollback, group="orders") for rollback in rollbacks]
    lacking += [replace(row, group="mail", downstream="stock") for row in lacking]
    week = datetime.now(UTC) - timedelta(days=7)
    policy = replace(CAREFUL, young_since={"orders": week})

    report = pair.repair(lacking, policy=policy, dry_run=dry_run, batch=batch)

    assert report.refused == {}
    assert report.repaired == {(MISSING, RepairAction.PUBLISH_AGAIN): Repaired(done=2, needless=2)}


@pytest.mark.parametrize("dry_run", [True, False])
def test_one_rollback_is_counted_for_two_groups_that_gave_up(pair: Pair, dry_run: bool):
    found = owed(pair, 2, "stock", "mail")

    report = pair.repair(found, policy=CAREFUL, dry_run=dry_run, batch=1, looked_up=1)

    action = (Verdict.NEITHER_EFFECT_NOR_COMPENSATION, RepairAction.RAISE_ROLLBACK)
    assert report.repaired == {action: Repaired(done=2, needless=2)}


def test_rollback_between_two_batches_prevents_the_replay(pair: Pair):
    pair.refuse_all(2)
    pair.orders.execute("DELETE FROM shield_inbox")
    pair.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', last_error = 'unclear', unconfirmed = true"
    )
    pair.stock.execute("UPDATE shield_outbox SET status = 'DISCARDED'")
    named = Policy(services=BOTH, named=frozenset({Verdict.PARKED}))
    parked = [listed(Verdict.PARKED, sent=failed) for failed in pair.sent()]

    raise_them = partial(pair.stock.execute, "UPDATE shield_outbox SET status = 'PROCESSED'")
    with before_statements(after_the_first_batch(raise_them)):
        report = pair.repair(parked, policy=named, batch=1)

    assert report.refused == {(Verdict.PARKED, TAKEN_BACK): 1}
    assert report.repaired == {(Verdict.PARKED, RepairAction.REPLAY_EVENT): Repaired(done=1)}
