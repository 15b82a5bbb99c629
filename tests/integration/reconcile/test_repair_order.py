"""The order of a key's events if a repair does not deliver all events that a group lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from shieldtx import Event
from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.repair.decisions import (
    AMONG_OTHERS,
    BUSINESS_KEY,
    LACKS_EARLIER,
    NOT_STORED,
    OVERTAKEN,
    WAITS_FOR_EARLIER,
    Policy,
)
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.discards import SqlDiscards
from shieldtx.store.tables import tables
from tests.support.repair_scenarios import (
    BOTH,
    Pair,
    absent,
    before_statements,
    lose,
    write_one_by_one,
)
from tests.support.service import Service

MISSING, ABSENT = Verdict.MISSING_DOWNSTREAM, Verdict.ABSENT_FROM_TOPIC
PLAIN = Policy(services=BOTH)
ABSENT_ALONE = Policy(services=BOTH, named=frozenset({ABSENT}))
HANDED_OVER = (MISSING, RepairAction.HAND_OVER)
PUBLISHED = (ABSENT, RepairAction.PUBLISH_AGAIN)


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


@pytest.fixture
def four(pair: Pair) -> Pair:
    """Four events, of the keys 0, 1, 2 and 0, which all groups have received."""
    write_one_by_one(pair, 4)
    pair.work()
    return pair


def missing(pair: Pair, *numbers: int, group: str = "stock") -> list[ListedRow]:
    """Return the rows that a run lists for some events that a group lacks."""
    found = pair.missing(group)
    return [found[number] for number in numbers]


def lose_of(pair: Pair, *numbers: int, group: str = "stock") -> None:
    """Lose the inbox rows of some events."""
    lose(pair, group, *(pair.sent()[number]["event_id"] for number in numbers))


# --- earlier events that are not in the request of a repair --------------------------------------


@pytest.mark.parametrize("dry_run", [True, False])
def test_event_waits_for_earlier_events_the_group_lacks(four: Pair, dry_run: bool):
    """As if the run of a window lists only the later event."""
    lose_of(four, 0, 1, 3)

    report = four.repair(missing(four, 1, 3), policy=PLAIN, dry_run=dry_run)
    assert report.refused == {(MISSING, LACKS_EARLIER): 1}
    assert report.repaired == {HANDED_OVER: Repaired(done=1)}

    anyhow = replace(PLAIN, out_of_order=True)
    report = four.repair(missing(four, 3), policy=anyhow, dry_run=dry_run)
    assert report.repaired == {HANDED_OVER: Repaired(done=1, out_of_order=1)}


def test_earlier_and_later_event_are_handed_over_together(four: Pair):
    lose_of(four, 0, 1, 3)

    report = four.repair(missing(four, 3, 0, 1), policy=PLAIN, batch=1, looked_up=1, compared=1)
    four.work()

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=3)}
    assert [row["key"] for row in four.received("stock")][-3:] == ["k0", "k1", "k0"]


def purged(pair: Pair) -> Policy:
    change = "UPDATE shield_outbox SET settled_at = now() - interval '9 days' WHERE seq = 1"
    pair.orders.execute(change)
    return replace(PLAIN, young_since={"stock": datetime.now(UTC) - timedelta(days=7)})


def taken_back(pair: Pair) -> Policy:
    """Let orders receive a rollback of the event, from another service."""
    columns = (
        "event_id, source, event_type, topic, payload, operation, event_time, received_at, due_at, "
        "status, attempts, settled_at"
    )
    pair.orders.execute(
        f"INSERT INTO shield_inbox ({columns}, tx_kind, consumer_group, causation_id, "
        "causation_source) SELECT gen_random_uuid(), 'web', event_type, topic, payload, operation, "
        "created_at, now(), now(), 'PROCESSED', 1, now(), 'ROLLBACK', 'orders', event_id, source "
        "FROM shield_outbox WHERE seq = 1"
    )
    return PLAIN


def of_another_type(pair: Pair) -> Policy:
    pair.orders.execute("UPDATE shield_outbox SET event_type = 'orders.paid' WHERE seq = 1")
    return PLAIN


def failed(pair: Pair) -> Policy:
    pair.orders.execute("UPDATE shield_outbox SET status = 'FAILED' WHERE seq = 1")
    return PLAIN


def of_a_former_name(pair: Pair) -> Policy:
    """Orders wrote the event under its former name, as after a change of SHIELDTX_SOURCE."""
    pair.orders.execute("UPDATE shield_outbox SET source = 'shop' WHERE seq = 1")
    return PLAIN


@pytest.mark.parametrize("change", [purged, taken_back, of_another_type, failed, of_a_former_name])
def test_event_not_meant_for_the_group_blocks_no_other(
    four: Pair, change: Callable[[Pair], Policy]
):
    lose_of(four, 0, 3)
    policy = change(four)

    report = four.repair(missing(four, 3), policy=policy)

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=1)}


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("out_of_order", [True, False])
def test_copy_waits_for_earlier_events_its_group_lacks(
    four: Pair, dry_run: bool, out_of_order: bool
):
    """The broker lost the later event, and still has the earlier event, which the group lost."""
    policy = replace(ABSENT_ALONE, out_of_order=out_of_order)
    lose_of(four, 0, 1, 3)

    report = four.repair(absent(four, 1, 3), policy=policy, dry_run=dry_run)

    if out_of_order:
        assert report.refused == {}
        assert report.repaired == {PUBLISHED: Repaired(done=2, out_of_order=1)}
    else:
        assert report.refused == {(ABSENT, AMONG_OTHERS): 1}
        assert report.repaired == {PUBLISHED: Repaired(done=1)}


@pytest.mark.parametrize("dry_run", [True, False])
def test_event_of_a_former_name_blocks_no_other(four: Pair, dry_run: bool):
    """Each name has an order of its own, as for relays."""
    of_a_former_name(four)
    four.stock.execute(
        "UPDATE shield_inbox SET source = 'shop' WHERE event_id = :e", e=four.sent()[0]["event_id"]
    )
    lose_of(four, 3)

    copied = four.repair(absent(four, 3), policy=ABSENT_ALONE, dry_run=True)
    report = four.repair(missing(four, 3), policy=PLAIN, dry_run=dry_run)

    assert (copied.refused, report.refused) == ({}, {})
    assert report.repaired == {HANDED_OVER: Repaired(done=1)}


@pytest.mark.parametrize("group", ["stock", "mail"])
def test_event_that_one_group_lacks_blocks_no_other_group(four: Pair, group: str):
    lose_of(four, 3)
    lose_of(four, 0, group=group)

    report = four.repair(absent(four, 3), policy=ABSENT_ALONE)

    assert report.refused == ({(ABSENT, AMONG_OTHERS): 1} if group == "stock" else {})


@pytest.mark.parametrize("dry_run", [True, False])
def test_event_that_another_group_discarded_still_blocks(pair: Pair, dry_run: bool):
    """Stock lacks both events of a key; mail parked and discarded the first."""
    refusal = "CHECK (consumer_group <> 'mail' OR key <> 'k0') NOT VALID"
    pair.stock.execute(f"ALTER TABLE shield_inbox ADD CONSTRAINT picky {refusal}")
    write_one_by_one(pair, 2)
    pair.work()
    pair.stock.execute("ALTER TABLE shield_inbox DROP CONSTRAINT picky")
    (parked,) = pair.stock.app.stores.dead_letters().parked(limit=9, group="mail")
    (done,) = SqlDiscards(pair.stock.engine, tables()).discard(
        [parked], who="ann", reason="closed by hand"
    )
    assert done.done
    with pair.orders.transaction() as session:
        pair.orders.app.outbox.add(session, Event(type="orders.placed", key="k0"))
    pair.work()
    lose_of(pair, 0, 2)

    report = pair.repair(absent(pair, 2), policy=ABSENT_ALONE, dry_run=dry_run)

    assert report.refused == {(ABSENT, AMONG_OTHERS): 1}
    assert report.repaired == {}


# --- earlier events that are not handed over in the end ------------------------------------------


def conflicting(pair: Pair) -> str:
    """Let stock have another event with the business key of the first one."""
    pair.stock.execute(
        "UPDATE shield_inbox SET biz_key = 'b' "
        "WHERE consumer_group = 'stock' AND payload LIKE '%1}'"
    )
    pair.orders.execute("UPDATE shield_outbox SET biz_key = 'b' WHERE seq = 1")
    return BUSINESS_KEY


def not_storable(pair: Pair) -> str:
    refusal = "CHECK (key <> 'k0' OR payload NOT LIKE '%0}') NOT VALID"
    pair.stock.execute(f"ALTER TABLE shield_inbox ADD CONSTRAINT picky {refusal}")
    return NOT_STORED


SIZES = [{}, {"batch": 1, "looked_up": 1, "compared": 1}]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("out_of_order", [True, False])
@pytest.mark.parametrize(
    ("refused", "dry_run"), [(conflicting, True), (conflicting, False), (not_storable, False)]
)
def test_later_events_wait_for_events_the_group_cannot_receive(
    pair: Pair,
    refused: Callable[[Pair], str],
    dry_run: bool,
    out_of_order: bool,
    sizes: dict[str, int],
):
    write_one_by_one(pair, 8)
    pair.work()
    lose_of(pair, 0, 3, 5, 6)
    reason = refused(pair)
    policy = replace(PLAIN, out_of_order=out_of_order)

    report = pair.repair(missing(pair, 6, 5, 3, 0), policy=policy, dry_run=dry_run, **sizes)

    if out_of_order:
        assert report.refused == {(MISSING, reason): 1}
        assert report.repaired == {HANDED_OVER: Repaired(done=3, out_of_order=2)}
    else:
        assert report.refused == {(MISSING, reason): 1, (MISSING, WAITS_FOR_EARLIER): 2}
        assert report.repaired == {HANDED_OVER: Repaired(done=1)}
    done = 0 if dry_run else report.repaired[HANDED_OVER].done
    assert len(pair.received("stock")) == 4 + done


def requeued(pair: Pair, *numbers: int) -> None:
    anyhow = replace(ABSENT_ALONE, out_of_order=True)
    report = pair.repair(absent(pair, *numbers), policy=anyhow)
    assert report.repaired[PUBLISHED].done == len(numbers)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
def test_event_waits_for_an_earlier_event_that_is_queued_again(
    four: Pair, is_listed: bool, dry_run: bool, sizes: dict[str, int]
):
    lose_of(four, 0, 1, 3)
    listed_ = missing(four, 3, 1, 0) if is_listed else missing(four, 3, 1)
    requeued(four, 0)

    report = four.repair(listed_, policy=PLAIN, dry_run=dry_run, **sizes)
    assert report.refused == {(MISSING, WAITS_FOR_EARLIER): 1}
    assert report.repaired == {HANDED_OVER: Repaired(done=1, needless=int(is_listed))}

    four.work()
    report = four.repair(listed_, policy=PLAIN, **sizes)
    four.work()
    assert report.refused == {}
    assert effects(four)[-2:] == [0, 3] if dry_run is False else effects(four)[-3:]


def sent_again(pair: Pair) -> None:
    pair.orders.execute("UPDATE shield_outbox SET settled_at = now() WHERE seq = 1")


@pytest.mark.parametrize("batch", [1, 500])
@pytest.mark.parametrize("moves", [lambda pair: requeued(pair, 0), sent_again])
def test_an_event_waits_for_an_earlier_one_that_moves_meanwhile(
    four: Pair, moves: Callable[[Pair], None], batch: int
):
    lose_of(four, 0, 1, 3)
    listed_, scans = missing(four, 0, 1, 3), []

    def after_the_scan(statement: str) -> None:
        if statement.startswith("SELECT shield_parked.record_headers") and not scans:
            scans.append(statement)
            moves(four)

    with before_statements(after_the_scan):
        report = four.repair(listed_, policy=PLAIN, batch=batch)

    assert report.refused == {(MISSING, WAITS_FOR_EARLIER): 1}
    assert report.repaired[HANDED_OVER].done == 1


def test_event_that_failed_since_the_run_blocks_no_other(four: Pair):
    lose_of(four, 0, 3)
    listed_ = missing(four, 0, 3)
    four.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', settled_at = now() WHERE seq = 1"
    )

    report = four.repair(listed_, policy=PLAIN)

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=1, changed=1)}


@pytest.mark.parametrize("is_earlier", [True, False])
def test_copy_waits_for_an_earlier_event_that_is_queued(four: Pair, is_earlier: bool):
    lose_of(four, 0, 3)
    requeued(four, 0 if is_earlier else 3)

    report = four.repair(absent(four, 3 if is_earlier else 0), policy=ABSENT_ALONE)

    assert report.refused == {(ABSENT, AMONG_OTHERS): 1}


# --- events with a chosen delay ------------------------------------------------------------------


def write_delayed(pair: Pair, *delays: float | None) -> None:
    """Write events of one key, and let all due events be sent and received in that order."""
    for number, delay in zip(count(), delays):
        with pair.orders.transaction() as session:
            placed = Event(type="orders.placed", key="k", payload={"n": number})
            more = {} if delay is None else {"delay": timedelta(seconds=delay)}
            pair.orders.app.outbox.add(session, placed, **more)
    order = sorted(range(len(delays)), key=lambda number: delays[number] or 0)
    for number in order:
        due = "now() - interval '1 hour' + :n * interval '1 minute'"
        pair.orders.execute(
            f"UPDATE shield_outbox SET due_at = {due}, created_at = least(created_at, {due}) "
            "WHERE seq = (SELECT min(seq) FROM shield_outbox) + :number",
            n=order.index(number),
            number=number,
        )
        pair.work()


def effects(pair: Pair) -> list[int]:
    """Return the numbers of the events that stock has handled, in the order of handling."""
    query = (
        "SELECT (i.payload::json ->> 'n')::int FROM effects e "
        "JOIN shield_inbox i ON i.event_id::text = e.event_id AND i.consumer_group = e.what "
        "WHERE e.what = 'stock' ORDER BY e.ctid"
    )
    return [number for (number,) in pair.stock.rows(query)]


@pytest.mark.parametrize("sizes", [{}, {"batch": 1, "looked_up": 1, "compared": 1}])
def test_delayed_events_are_handed_over_when_they_were_due(pair: Pair, sizes: dict[str, int]):
    write_delayed(pair, 900, 600, 300)
    assert effects(pair) == [2, 1, 0]
    lose_of(pair, 0, 1, 2)
    pair.stock.execute("DELETE FROM effects WHERE what = 'stock'")

    report = pair.repair(pair.missing("stock"), policy=PLAIN, **sizes)
    pair.work()

    assert report.refused == {}
    assert report.repaired == {HANDED_OVER: Repaired(done=3)}
    assert effects(pair) == [2, 1, 0]


@pytest.mark.parametrize(
    ("delays", "lost", "is_late"),
    [
        ((900, 600), 1, True),
        ((900, 600), 0, False),
        ((900, None), 1, True),
        ((900, None), 0, False),
        ((None, 600), 0, True),
        ((None, 600), 1, False),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_event_with_a_later_due_time_counts_as_later(
    pair: Pair, delays: Sequence[float | None], lost: int, is_late: bool, dry_run: bool
):
    write_delayed(pair, *delays)
    lose_of(pair, lost)

    for policy, verdict in (
        (PLAIN, missing(pair, lost)),
        (ABSENT_ALONE, absent(pair, lost)),
    ):
        report = pair.repair(verdict, policy=policy, dry_run=True)
        assert report.refused == ({(verdict[0].verdict, OVERTAKEN): 1} if is_late else {})
    report = pair.repair(missing(pair, lost), policy=PLAIN, dry_run=dry_run)
    assert report.refused == ({(MISSING, OVERTAKEN): 1} if is_late else {})


@pytest.mark.parametrize(("listed", "is_late"), [(0, True), (1, False)])
def test_delayed_event_waits_for_earlier_due_events_of_the_group(
    pair: Pair, listed: int, is_late: bool
):
    write_delayed(pair, 900, 600)
    lose_of(pair, 0, 1)

    report = pair.repair(missing(pair, listed), policy=PLAIN)

    assert report.refused == ({(MISSING, LACKS_EARLIER): 1} if is_late else {})
