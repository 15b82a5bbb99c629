"""Delayed events in every store: listed, cancelled, rescheduled, and sent by their due times."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.domain.schedule import Due
from shieldtx.domain.states import OutboxStatus
from shieldtx.errors import EventRefused
from shieldtx.ports.delayed_events import BizKey, Change, ChangeResult
from shieldtx.ports.outbox import Posting
from shieldtx.ports.relay import Claim, Retry, Settlement
from shieldtx.store.delayed_events import SqlDelayedEventStore
from tests.contract.conftest import (
    ROUNDING,
    UNINDEXED,
    Stores,
    before_first_update,
    with_settings,
)

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


def write(
    stores: Stores,
    key: str = "k",
    *,
    biz_key: str | None = None,
    event_type: str = "things.happened",
    **due: Any,
) -> UUID:
    envelope = Envelope(
        id=new_event_id(),
        type=event_type,
        source="things",
        topic="things",
        payload="{}",
        time=datetime.now(UTC),
        key=key,
        biz_key=biz_key,
    )
    with stores.engine.begin() as connection:
        stores.writer.insert(connection, [Posting(envelope=envelope, **due)])
    return envelope.id


def ago(**units: int) -> datetime:
    return datetime.now(UTC) - timedelta(**units)


def claim(stores: Stores, limit: int = 100) -> Claim:
    stores.leases.renew(relay="me", lease=HOUR)
    return stores.outbox.claim(relay="me", limit=limit)


def ids(claimed: Claim) -> list[UUID]:
    return [event.envelope.id for event in claimed.events]


def cancel(stores: Stores, event: UUID | BizKey) -> Change:
    with stores.engine.begin() as connection:
        return SqlDelayedEventStore(stores.tables).cancel(connection, event, who="ann")


def reschedule(stores: Stores, event: UUID | BizKey, due: Due) -> Change:
    with stores.engine.begin() as connection:
        return SqlDelayedEventStore(stores.tables).reschedule(connection, event, due, who="ann")


def waiting(stores: Stores, **asked: Any) -> list[UUID]:
    with stores.engine.begin() as connection:
        found = SqlDelayedEventStore(stores.tables).waiting(connection, **{"limit": 10} | asked)
    return [event.event_id for event in found]


def row(stores: Stores, event_id: UUID) -> Any:
    o = stores.tables.outbox
    with stores.engine.connect() as connection:
        return connection.execute(select(o).where(o.c.event_id == event_id)).one()


def audit(stores: Stores) -> list[tuple[str, str, str, dict[str, Any]]]:
    a = stores.tables.audit
    with stores.engine.connect() as connection:
        rows = connection.execute(select(a).order_by(a.c.id))
        return [(r.who, r.action, r.subject, json.loads(r.detail)) for r in rows]


def until_due(
    stores: Stores, since: timedelta = timedelta(0), *, relay: str = "me", within: timedelta = DAY
) -> timedelta | None:
    return stores.outbox.until_due(relay=relay, since=since, within=within)


def test_delayed_events_of_a_key_are_sent_by_due_time(stores: Stores) -> None:
    last = write(stores, at=ago(minutes=1))
    first = write(stores, at=ago(minutes=3))
    middle = write(stores, at=ago(minutes=2))
    assert ids(claim(stores)) == [first, middle, last]


def test_limited_claim_takes_the_first_due_events_of_a_key(stores: Stores) -> None:
    last = write(stores, at=ago(minutes=1))
    first = write(stores, at=ago(minutes=3))
    middle = write(stores, at=ago(minutes=2))
    assert [ids(claim(stores, limit=1))[0] for _ in range(3)] == [first, middle, last]


def test_refused_delayed_event_does_not_block_the_next(stores: Stores) -> None:
    refused = write(stores, at=ago(minutes=2))
    token = claim(stores).token
    again = Retry(event_id=refused, delay=HOUR, reason="refused")
    assert stores.outbox.settle(token, Settlement(retries=[again])) == 1
    following = write(stores, at=ago(minutes=1))
    assert ids(claim(stores)) == [following]


@pytest.mark.parametrize(
    "named",
    [lambda i: i, str, lambda _: BizKey("things.happened", "4711")],
    ids=["id", "text", "key"],
)
def test_cancelled_event_is_discarded_and_audited(
    stores: Stores, named: Callable[[UUID], Any]
) -> None:
    event_id = write(stores, biz_key="4711", delay=HOUR)
    due_at = row(stores, event_id).due_at
    change = cancel(stores, named(event_id))
    assert change == Change(
        result=ChangeResult.DONE, event_id=event_id, status=OutboxStatus.DISCARDED, due_at=due_at
    )
    assert change
    assert row(stores, event_id).status == "DISCARDED"
    assert row(stores, event_id).settled_at is not None
    [(who, action, subject, detail)] = audit(stores)
    assert (who, action, subject) == ("ann", "cancel", f"event {event_id} in the outbox")
    assert (detail["from"], detail["to"], detail["biz_key"]) == ("INIT", "DISCARDED", "4711")


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (BizKey("things.happened", 4711), "biz_key: must be text, not int"),  # type: ignore[arg-type]
        (BizKey("things.happened", "\0"), "biz_key: "),
        (("things.happened", "4711"), "event: must be the id of an event or a BizKey, not tuple"),
        ("4711", "event: must be the id of an event or a BizKey, not '4711'"),
        (None, "event: must be the id of an event or a BizKey, not NoneType"),
    ],
)
def test_what_cannot_name_an_event_is_refused(stores: Stores, event: Any, problem: str) -> None:
    event_id = write(stores, biz_key="4711", delay=HOUR)
    with stores.engine.begin() as connection:
        store = SqlDelayedEventStore(stores.tables)
        with pytest.raises(EventRefused, match=problem):
            store.cancel(connection, event, who="ann")
        with pytest.raises(EventRefused, match=problem):
            store.reschedule(connection, event, Due(delay=HOUR), who="ann")
        # The caller's transaction is usable.
        assert store.cancel(connection, event_id, who="ann")


def test_a_business_key_names_the_event_of_its_type(stores: Stores) -> None:
    happened = write(stores, biz_key="4711", delay=HOUR)
    changed = write(stores, biz_key="4711", event_type="things.changed", delay=HOUR)
    assert cancel(stores, BizKey("things.changed", "4711")).result is ChangeResult.DONE
    assert [row(stores, i).status for i in (happened, changed)] == ["INIT", "DISCARDED"]


@pytest.mark.begun_by_hand
def test_rescheduled_event_waits_for_its_new_time_and_is_audited(stores: Stores) -> None:
    event_id = write(stores, delay=HOUR)
    before = row(stores, event_id).due_at
    change = reschedule(stores, event_id, Due(delay=timedelta(days=40)))
    now = row(stores, event_id)
    assert (change.result, change.due_at) == (ChangeResult.DONE, now.due_at)
    assert abs(now.due_at - before - timedelta(days=40) + HOUR) < MINUTE
    assert (now.status, now.waiting, now.holds_key) == ("INIT", True, False)
    [(who, action, _, detail)] = audit(stores)
    assert (who, action) == ("ann", "reschedule")
    assert (detail["due_at"], detail["due_at_now"]) == (before.isoformat(), now.due_at.isoformat())


def test_an_event_can_be_rescheduled_to_now(stores: Stores) -> None:
    event_id = write(stores, delay=HOUR)
    assert reschedule(stores, event_id, Due(at=ago(minutes=1)))
    assert ids(claim(stores)) == [event_id]


def lock_of(stores: Stores, event_id: UUID) -> Any:
    o = stores.tables.outbox
    return select(o.c.event_id).where(o.c.event_id == event_id).with_for_update(skip_locked=True)


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_no_relay_claims_an_event_between_check_and_change(stores: Stores) -> None:
    event_id = write(stores, delay=HOUR)

    def claim_it() -> None:
        """Search for the row as a claim does, which skips locked rows."""
        with stores.engine.begin() as relay:
            assert relay.execute(lock_of(stores, event_id)).all() == []

    with before_first_update(stores.engine, claim_it):
        assert cancel(stores, event_id)


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_a_claim_waits_for_no_due_event_that_is_being_changed(stores: Stores) -> None:
    busy, free = write(stores, "a", at=ago(minutes=2)), write(stores, "b", at=ago(minutes=1))
    with stores.engine.begin() as operator:
        assert operator.scalars(lock_of(stores, busy)).all() == [busy]
        with with_settings(stores, lock_timeout="1s") as impatient:
            assert ids(claim(impatient)) == [free]
    assert ids(claim(stores)) == [busy]


def published(stores: Stores) -> UUID:
    event_id = write(stores, at=ago(minutes=1))
    stores.outbox.settle(claim(stores).token, Settlement(processed=[event_id]))
    return event_id


def claimed(stores: Stores) -> UUID:
    event_id = write(stores, at=ago(minutes=1))
    assert ids(claim(stores)) == [event_id]
    return event_id


def failed(stores: Stores) -> UUID:
    event_id = write(stores, at=ago(minutes=1))
    token = claim(stores).token
    assert stores.outbox.fail(token, event_id, reason="rejected", local_rollback=None)
    return event_id


def retried(stores: Stores) -> UUID:
    event_id = write(stores, at=ago(minutes=1))
    again = Retry(event_id=event_id, delay=HOUR, reason="refused")
    stores.outbox.settle(claim(stores).token, Settlement(retries=[again]))
    return event_id


def unconfirmed(stores: Stores) -> UUID:
    """The first attempt had no answer, and the second was refused."""
    event_id = write(stores, at=ago(minutes=1))
    stores.outbox.settle(claim(stores).token, Settlement(unconfirmed=[event_id], reason="away"))
    again = Retry(event_id=event_id, delay=HOUR, reason="refused")
    stores.outbox.settle(claim(stores).token, Settlement(retries=[again]))
    return event_id


def cancelled(stores: Stores) -> UUID:
    event_id = write(stores, delay=HOUR)
    assert cancel(stores, event_id)
    return event_id


def half(stores: Stores) -> UUID:
    event_id = write(stores, delay=HOUR)
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        connection.execute(update(o).where(o.c.event_id == event_id).values(status="HALF"))
    return event_id


@pytest.mark.parametrize(
    ("made", "result", "status"),
    [
        (lambda stores: new_event_id(), ChangeResult.UNKNOWN, None),
        (lambda stores: BizKey("things.happened", "never"), ChangeResult.UNKNOWN, None),
        (write, ChangeResult.NOT_DELAYED, "INIT"),
        (unconfirmed, ChangeResult.UNCONFIRMED, "INIT"),
        (half, ChangeResult.NOT_DELAYED, "HALF"),
        (lambda stores: write(stores, at=ago(minutes=1)), ChangeResult.DUE, "INIT"),
        (claimed, ChangeResult.CLAIMED, "PROCESSING"),
        (published, ChangeResult.PUBLISHED, "PROCESSED"),
        (cancelled, ChangeResult.CANCELLED, "DISCARDED"),
        (failed, ChangeResult.FAILED, "FAILED"),
    ],
)
def test_unchangeable_event_is_left_unchanged_with_a_reason(
    stores: Stores, made: Any, result: ChangeResult, status: str | None
) -> None:
    event = made(stores)
    noted = audit(stores)
    before = row(stores, event) if status else None
    for change in (cancel(stores, event), reschedule(stores, event, Due(delay=HOUR))):
        assert (change.result, change.status) == (result, status)
        assert not change
    assert before is None or row(stores, event) == before
    assert audit(stores) == noted


def test_waiting_events_are_listed_by_due_time(stores: Stores) -> None:
    later = write(stores, "a", delay=3 * HOUR)
    sooner = write(stores, "b", biz_key="7", delay=HOUR)
    overdue = write(stores, "c", at=ago(minutes=1))
    for made in (write, cancelled):
        made(stores)
    assert waiting(stores) == [overdue, sooner, later]
    assert waiting(stores, limit=2) == [overdue, sooner]
    assert waiting(stores, key="a") == [later]
    assert waiting(stores, topic="things", event_type="things.happened", key="b") == [sooner]
    assert waiting(stores, topic="others") == waiting(stores, event_type="others") == []
    with stores.engine.begin() as connection:
        [_, event, _] = SqlDelayedEventStore(stores.tables).waiting(connection, limit=9)
    fields = (event.event_type, event.topic, event.key, event.biz_key)
    assert fields == ("things.happened", "things", "b", "7")
    assert event.due_at == row(stores, sooner).due_at
    assert HOUR - MINUTE < event.left <= HOUR + ROUNDING


def test_refused_delayed_event_can_still_be_cancelled(stores: Stores) -> None:
    event_id = retried(stores)
    with stores.engine.begin() as connection:
        [event] = SqlDelayedEventStore(stores.tables).waiting(connection, limit=9)
    assert (event.event_id, event.attempts) == (event_id, 1)
    assert cancel(stores, event_id)
    assert row(stores, event_id).status == "DISCARDED"


def test_refused_ordinary_event_is_not_listed_as_delayed(
    stores: Stores,
) -> None:
    event_id = write(stores)
    again = Retry(event_id=event_id, delay=HOUR, reason="refused")
    stores.outbox.settle(claim(stores).token, Settlement(retries=[again]))
    assert waiting(stores) == []
    assert cancel(stores, event_id).result is ChangeResult.NOT_DELAYED


def test_relay_gets_the_due_time_of_its_next_event(stores: Stores) -> None:
    claim(stores)
    assert until_due(stores) is None
    write(stores, "a", delay=2 * HOUR)
    write(stores, "b", delay=HOUR)
    left = until_due(stores)
    assert left is not None
    assert HOUR - MINUTE < left <= HOUR + ROUNDING


def test_next_due_event_of_a_shard_is_found_in_any_write_order(stores: Stores) -> None:
    claim(stores)
    for hours in (3, 1, 2):
        write(stores, "a", delay=hours * HOUR)
    left = until_due(stores)
    assert left is not None
    assert HOUR - MINUTE < left <= HOUR + ROUNDING


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_next_due_event_of_a_shard_is_found_at_any_row_position(stores: Stores) -> None:
    claim(stores)
    for hours in (3, 1, 2):
        write(stores, "a", delay=hours * HOUR)
    with with_settings(stores, **UNINDEXED) as unindexed:
        left = until_due(unindexed)
    assert left is not None
    assert HOUR - MINUTE < left <= HOUR + ROUNDING


def test_next_due_time_is_searched_only_within_the_given_time(stores: Stores) -> None:
    claim(stores)
    write(stores, "a", delay=HOUR)
    assert until_due(stores, within=HOUR - MINUTE) is None
    assert until_due(stores, within=HOUR + MINUTE) is not None


def test_the_next_due_time_counts_retries_but_no_claimed_rows(stores: Stores) -> None:
    retried(stores)
    claim(stores)
    left = until_due(stores)
    assert left is not None
    assert HOUR - MINUTE < left <= HOUR + ROUNDING
    assert until_due(stores, relay="another") is None
    assert until_due(stores, since=HOUR, relay="another") is None


def test_only_events_due_since_the_last_claim_are_due_now(
    stores: Stores,
) -> None:
    claim(stores)
    write(stores, at=ago(seconds=10))
    assert until_due(stores, since=5 * SECOND) is None
    left = until_due(stores, since=60 * SECOND)
    assert left is not None
    assert left < timedelta(0)


def test_claimed_event_is_not_due_again(stores: Stores) -> None:
    claimed(stores)
    assert until_due(stores, since=HOUR) is None
