"""The behaviour of every store of half messages, on each database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine, select, update
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError, IntegrityError

from shieldtx import EventRefused, LocalOutcome, OutboxStatus, new_event_id
from shieldtx.domain.events import Envelope
from shieldtx.errors import IllegalTransition, LateTransaction, TransactionRefused
from shieldtx.ports.half_messages import CheckClaim, CheckResult, CheckSchedule, NewHalfMessage
from shieldtx.ports.outbox import Posting
from shieldtx.store.half_messages import SqlHalfMessageStore
from tests.contract.conftest import (
    ROUNDING,
    SHARDS,
    UNINDEXED,
    Stores,
    before_first_update,
    with_settings,
)
from tests.support.migrated_databases import migrated_sqlite

COMMIT, ROLLBACK, UNKNOWN = LocalOutcome.COMMIT, LocalOutcome.ROLLBACK, LocalOutcome.UNKNOWN
HOUR = timedelta(hours=1)
TYPE = "things.happened"


def envelope(key: str | None = "k", **more: Any) -> Envelope:
    return Envelope(
        **{
            "id": new_event_id(),
            "type": TYPE,
            "source": "things",
            "topic": "things",
            "payload": "{}",
            "time": datetime.now(UTC),
            "key": key,
        }
        | more
    )


def prepare(stores: Stores, *envelopes: Envelope, **due: Any) -> list[UUID]:
    envelopes = envelopes or (envelope(),)
    stores.half.prepare([NewHalfMessage(envelope=e, **due) for e in envelopes])
    return [e.id for e in envelopes]


def add(stores: Stores, *envelopes: Envelope) -> list[UUID]:
    """Write ordinary events."""
    with stores.engine.begin() as connection:
        stores.writer.insert(connection, [Posting(envelope=e) for e in envelopes])
    return [e.id for e in envelopes]


def ids(stores: Stores) -> list[UUID]:
    o = stores.tables.outbox
    with stores.engine.connect() as connection:
        return list(connection.scalars(select(o.c.event_id).order_by(o.c.seq)))


def row(stores: Stores, event_id: UUID) -> dict[str, Any]:
    o = stores.tables.outbox
    with stores.engine.connect() as connection:
        found = connection.execute(select(o).where(o.c.event_id == event_id)).mappings().one()
    return dict(found)


def change(stores: Stores, event_id: UUID, **columns: Any) -> None:
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        connection.execute(update(o).where(o.c.event_id == event_id).values(columns))


def let_time_pass(stores: Stores, *event_ids: UUID) -> None:
    """Make the next check of messages due."""
    for event_id in event_ids:
        change(stores, event_id, check_at=datetime.now(UTC) - timedelta(seconds=1))


def claimed(stores: Stores) -> list[UUID]:
    stores.leases.renew(relay="me", lease=HOUR)
    return [c.envelope.id for c in stores.outbox.claim(relay="me", limit=100).events]


def claim_checks(stores: Stores, *event_ids: UUID, limit: int = 10) -> CheckClaim:
    """Claim the messages that are due for a check, after making the next check of these due."""
    let_time_pass(stores, *event_ids)
    return stores.half.claim_checks(TYPE, limit=limit)


def named(claim: CheckClaim) -> list[UUID]:
    return [check.envelope.id for check in claim.checks]


def answer(
    stores: Stores, claim: CheckClaim, *outcomes: LocalOutcome, reason: str = "as it said"
) -> list[UUID]:
    """Answer the checks of a claim, and return the messages for which the answer counts."""
    said = [CheckResult(c, o, reason) for c, o in zip(claim.checks, outcomes, strict=True)]
    return sorted(stores.half.answer(claim.token, said))


def test_a_half_message_is_invisible_to_relays(stores: Stores) -> None:
    prepare(stores, envelope("a"), envelope("b"))
    assert claimed(stores) == []


def test_a_half_message_blocks_no_event_of_its_key(stores: Stores) -> None:
    prepare(stores, envelope("same"))
    written = add(stores, envelope("same"))
    assert claimed(stores) == written


def test_commit_releases_the_event_as_it_was_prepared(stores: Stores) -> None:
    prepared = envelope("k", biz_key="b", headers={"h": "v"}, payload='{"a":1}')
    [event_id] = prepare(stores, prepared)
    assert stores.half.resolve([event_id], COMMIT) == {event_id: OutboxStatus.HALF}
    stores.leases.renew(relay="me", lease=HOUR)
    [event] = stores.outbox.claim(relay="me", limit=10).events
    assert event.envelope.evolve(time=prepared.time) == prepared


def test_half_message_is_queued_at_its_commit(stores: Stores) -> None:
    early, late = prepare(stores, envelope("k")), prepare(stores, envelope("k"))
    between = add(stores, envelope("k"))
    stores.half.resolve(late, COMMIT)
    last = add(stores, envelope("k"))
    stores.half.resolve(early, COMMIT)
    assert claimed(stores) == [*between, *late, *last, *early]


def test_messages_committed_together_keep_the_order_of_the_call(stores: Stores) -> None:
    first, second, third = prepare(stores, *(envelope("k") for _ in range(3)))
    stores.half.resolve([second, third, first], COMMIT)
    assert claimed(stores) == [second, third, first]


def test_age_of_a_half_message_starts_at_its_commit(stores: Stores) -> None:
    [event_id] = prepare(stores)
    change(stores, event_id, created_at=datetime.now(UTC) - HOUR)
    stores.half.resolve([event_id], COMMIT)
    assert datetime.now(UTC) - row(stores, event_id)["created_at"] < HOUR / 2


def test_rollback_discards_a_half_message_permanently(stores: Stores) -> None:
    [event_id] = prepare(stores)
    stores.half.resolve([event_id], ROLLBACK)
    assert row(stores, event_id)["status"] == "DISCARDED"
    assert stores.half.resolve([event_id], COMMIT) == {event_id: OutboxStatus.DISCARDED}
    assert claimed(stores) == []


def test_the_same_commit_call_again_changes_nothing(stores: Stores) -> None:
    [event_id] = prepare(stores)
    stores.half.resolve([event_id], COMMIT)
    before = row(stores, event_id)
    assert stores.half.resolve([event_id], COMMIT) == {event_id: OutboxStatus.INIT}
    assert row(stores, event_id) == before


def test_an_event_that_was_never_half_is_left_out(stores: Stores) -> None:
    [event_id] = add(stores, envelope())
    assert stores.half.resolve([event_id, new_event_id()], ROLLBACK) == {}
    assert row(stores, event_id)["status"] == "INIT"


def test_a_chosen_delay_begins_with_the_commit(stores: Stores) -> None:
    [event_id] = prepare(stores, delay=HOUR)
    change(stores, event_id, created_at=datetime.now(UTC) - 2 * HOUR)
    stores.half.resolve([event_id], COMMIT)
    due_in = row(stores, event_id)["due_at"] - datetime.now(UTC)
    assert HOUR - timedelta(minutes=1) < due_in <= HOUR + ROUNDING
    assert claimed(stores) == []
    change(stores, event_id, due_at=datetime.now(UTC) - timedelta(seconds=1))
    assert claimed(stores) == [event_id]


@pytest.mark.parametrize("ago", [-HOUR, HOUR], ids=["to come", "past"])
def test_chosen_time_is_kept_in_the_past_or_the_future(stores: Stores, ago: timedelta) -> None:
    at = datetime.now(UTC) - ago
    [event_id] = prepare(stores, at=at)
    assert claimed(stores) == [], "whatever the time, it is half"
    stores.half.resolve([event_id], COMMIT)
    assert abs(row(stores, event_id)["due_at"] - at) < timedelta(seconds=1)
    assert claimed(stores) == ([event_id] if ago > timedelta(0) else [])


def test_a_delayed_half_message_blocks_no_event_after_its_commit(stores: Stores) -> None:
    [event_id] = prepare(stores, envelope("k"), delay=HOUR)
    stores.half.resolve([event_id], COMMIT)
    written = add(stores, envelope("k"))
    assert claimed(stores) == written


def test_business_key_is_refused_while_it_is_in_use(stores: Stores) -> None:
    prepare(stores, envelope(biz_key="b"))
    with pytest.raises(EventRefused, match="biz_key"):
        prepare(stores, envelope(biz_key="b"))
    assert len(ids(stores)) == 1


def test_a_rollback_frees_its_business_key_for_the_next_try(stores: Stores) -> None:
    stores.half.resolve(prepare(stores, envelope(biz_key="b")), ROLLBACK)
    [again] = prepare(stores, envelope(biz_key="b"))
    assert row(stores, again)["biz_key"] == "b"


@pytest.mark.begun_by_hand
def test_several_are_prepared_or_none(stores: Stores) -> None:
    twice = envelope()
    with pytest.raises(EventRefused, match="id"):
        prepare(stores, envelope(), twice, twice)
    assert ids(stores) == []


def test_a_refusal_of_another_kind_is_the_databases_own_error(stores: Stores) -> None:
    with pytest.raises(IntegrityError, match="topic"):
        prepare(stores, envelope(topic=None))
    assert ids(stores) == []


# --- checks ---------------------------------------------------------------------------------------


def test_no_check_is_made_before_the_immunity_is_over(stores: Stores) -> None:
    [event_id] = prepare(stores)
    assert named(claim_checks(stores)) == []
    due_in = row(stores, event_id)["check_at"] - datetime.now(UTC)
    assert timedelta(seconds=4) < due_in <= timedelta(seconds=6)


def test_a_message_may_have_an_immunity_of_its_own(stores: Stores) -> None:
    [at_once] = prepare(stores, envelope(), immunity=timedelta(0))
    prepare(stores, envelope(), immunity=HOUR)
    assert named(claim_checks(stores)) == [at_once]


def test_check_is_claimed_once_and_is_due_after_the_interval(stores: Stores) -> None:
    [event_id] = prepare(stores)
    [check] = claim_checks(stores, event_id).checks
    assert (check.envelope.id, check.number) == (event_id, 1)
    assert named(claim_checks(stores)) == []
    due_in = row(stores, event_id)["check_at"] - datetime.now(UTC)
    assert timedelta(seconds=25) < due_in <= timedelta(seconds=30) + ROUNDING


def test_the_count_of_a_check_is_committed_before_it_is_made(stores: Stores) -> None:
    [event_id] = prepare(stores)
    claim_checks(stores, event_id)
    assert row(stores, event_id)["checks"] == 1
    assert [c.number for c in claim_checks(stores, event_id).checks] == [2]


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK, UNKNOWN])
def test_answer_of_an_overtaken_check_changes_nothing(
    stores: Stores, outcome: LocalOutcome
) -> None:
    [event_id] = prepare(stores)
    slow = claim_checks(stores, event_id)
    quick = claim_checks(stores, event_id)
    before = row(stores, event_id)
    assert answer(stores, slow, outcome) == []
    stores.half.release(slow.token, slow.checks)
    assert row(stores, event_id) == before
    assert answer(stores, quick, outcome) == [event_id]


def test_the_interval_grows_where_a_factor_is_set(stores: Stores) -> None:
    plan = CheckSchedule(growth=2.0, longest=timedelta(seconds=100), immunity=timedelta(0))
    growing = SqlHalfMessageStore(stores.engine, stores.tables, shards=SHARDS, plan=plan)
    growing.prepare([NewHalfMessage(envelope=envelope())])
    [event_id] = ids(stores)
    pauses = []
    for _ in range(4):
        let_time_pass(stores, event_id)
        [_] = growing.claim_checks(TYPE, limit=10).checks
        pauses.append(row(stores, event_id)["check_at"] - datetime.now(UTC))
    assert [round(p.total_seconds() / 10) for p in pauses] == [3, 6, 10, 10]


def test_check_claims_only_messages_of_its_event_type(stores: Stores) -> None:
    let_time_pass(stores, *prepare(stores))
    assert stores.half.claim_checks("things.else", limit=10).checks == []


def test_a_claim_takes_the_longest_due_up_to_its_limit(stores: Stores) -> None:
    written = prepare(stores, *(envelope() for _ in range(3)))
    for age, event_id in enumerate(written):
        change(stores, event_id, check_at=datetime.now(UTC) - timedelta(minutes=age + 1))
    claim = claim_checks(stores, limit=1)
    assert named(claim) == [written[2]]
    assert claim.more
    rest = claim_checks(stores)
    assert named(rest) == written[:2]
    assert not rest.more


@pytest.mark.parametrize(("outcome", "status"), [(COMMIT, "INIT"), (ROLLBACK, "DISCARDED")])
def test_answer_resolves_the_half_message(
    stores: Stores, outcome: LocalOutcome, status: str
) -> None:
    [event_id] = prepare(stores)
    assert answer(stores, claim_checks(stores, event_id), outcome) == [event_id]
    after = row(stores, event_id)
    left = [after[column] for column in ("check_at", "last_error", "lease_token")]
    assert (after["status"], left) == (status, [None, None, None])


def test_answers_that_differ_are_written_down_together(stores: Stores) -> None:
    written = prepare(stores, *(envelope() for _ in range(4)))
    claim = claim_checks(stores, *written)
    stores.half.resolve([written[3]], ROLLBACK)
    assert answer(stores, claim, COMMIT, ROLLBACK, UNKNOWN, COMMIT) == sorted(written[:3])
    found = [row(stores, event_id)["status"] for event_id in written]
    assert found == ["INIT", "DISCARDED", "HALF", "DISCARDED"]


def test_messages_committed_by_one_batch_keep_prepare_order(
    stores: Stores,
) -> None:
    written = prepare(stores, *(envelope("k") for _ in range(20)))
    for age, event_id in enumerate(written):
        change(stores, event_id, check_at=datetime.now(UTC) - timedelta(minutes=age + 1))
    claim = claim_checks(stores, limit=20)
    said = [CheckResult(check, COMMIT, "as it said") for check in reversed(claim.checks)]
    assert len(stores.half.answer(claim.token, said)) == 20
    assert claimed(stores) == written


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK, UNKNOWN])
@pytest.mark.parametrize("word", [COMMIT, ROLLBACK])
def test_answer_counts_only_while_the_message_is_half(
    stores: Stores, word: LocalOutcome, outcome: LocalOutcome
) -> None:
    [event_id] = prepare(stores)
    claim = claim_checks(stores, event_id)
    stores.half.resolve([event_id], word)
    before = row(stores, event_id)
    assert answer(stores, claim, outcome, reason="late") == []
    assert row(stores, event_id) == before


def test_unknown_leaves_the_message_half_with_the_reason(stores: Stores) -> None:
    [event_id] = prepare(stores)
    claim = claim_checks(stores, event_id)
    assert answer(stores, claim, UNKNOWN, reason="nobody home") == [event_id]
    after = row(stores, event_id)
    assert (after["status"], after["last_error"]) == ("HALF", "nobody home")


def test_a_check_that_was_not_made_is_released_uncounted(stores: Stores) -> None:
    made, unmade = prepare(stores, envelope(), envelope())
    claim = claim_checks(stores, made, unmade)
    stores.half.release(claim.token, claim.checks[1:])
    again = claim_checks(stores)
    assert [(c.envelope.id, c.number) for c in again.checks] == [(unmade, 1)]


def test_unanswered_check_is_claimed_alone_next_time(stores: Stores) -> None:
    lost = prepare(stores, envelope(), envelope())
    claim_checks(stores, *lost)
    others = prepare(stores, envelope(), envelope())
    now = datetime.now(UTC)
    for age, event_id in enumerate([others[0], lost[0], others[1], lost[1]]):
        change(stores, event_id, check_at=now - timedelta(minutes=9 - age))
    claims = [claim_checks(stores) for _ in range(4)]
    assert [named(claim) for claim in claims] == [others, [lost[0]], [lost[1]], []]
    assert [claim.more for claim in claims] == [True, True, False, False]


def test_answered_or_released_checks_are_batched_again(stores: Stores) -> None:
    written = prepare(stores, envelope(), envelope(), envelope())
    claim = claim_checks(stores, *written[:2])
    stores.half.answer(claim.token, [CheckResult(claim.checks[0], UNKNOWN, "nobody home")])
    stores.half.release(claim.token, claim.checks[1:])
    assert sorted(named(claim_checks(stores, *written))) == sorted(written)


@contextmanager
def locked(stores: Stores, event_id: UUID) -> Iterator[None]:
    """Keep the lock of a row, as a commit call in progress does."""
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        connection.execute(select(o.c.event_id).where(o.c.event_id == event_id).with_for_update())
        yield


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_a_claim_of_checks_waits_for_no_locked_message(stores: Stores) -> None:
    busy, free = prepare(stores, envelope(), envelope())
    let_time_pass(stores, busy, free)
    with locked(stores, busy), with_settings(stores, lock_timeout="1s") as impatient:
        assert named(claim_checks(impatient)) == [free]
    assert named(claim_checks(stores)) == [busy]


@pytest.mark.parametrize("stores", ["sqlite"], indirect=True)
def test_a_message_that_ends_during_the_claim_is_not_checked(stores: Stores) -> None:
    """Without row locks, the message ends between being found and being claimed."""
    [event_id] = prepare(stores)
    let_time_pass(stores, event_id)
    with before_first_update(stores.engine, lambda: stores.half.resolve([event_id], COMMIT)):
        assert named(claim_checks(stores)) == []
    after = row(stores, event_id)
    assert (after["status"], after["check_at"], after["lease_token"]) == ("INIT", None, None)


@pytest.mark.parametrize("stores", ["sqlite"], indirect=True)
def test_unknown_outcome_leaves_a_message_that_ended_meanwhile(stores: Stores) -> None:
    """Its row may be leased to a relay at that time."""
    [event_id] = prepare(stores)
    checks = claim_checks(stores, event_id)

    def commit_and_relay() -> None:
        stores.half.resolve([event_id], COMMIT)
        assert claimed(stores) == [event_id]

    with before_first_update(stores.engine, commit_and_relay):
        answer(stores, checks, UNKNOWN)
    after = row(stores, event_id)
    assert (after["status"], after["last_error"]) == ("PROCESSING", None)
    assert after["lease_token"] is not None


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_batch_keeps_its_prepare_order_at_any_row_position(stores: Stores) -> None:
    written = prepare(stores, *(envelope("k") for _ in range(5)))
    with with_settings(stores, **UNINDEXED) as unindexed:
        checks = claim_checks(unindexed, *reversed(written))
        for event_id in reversed(written):
            change(stores, event_id, last_error="moved")
        answer(unindexed, checks, *[COMMIT] * 5)
    assert claimed(stores) == written


def test_the_event_types_are_those_of_messages_that_are_half(stores: Stores) -> None:
    half, sent, undone, other = prepare(
        stores, envelope(), envelope(), envelope(), envelope(type="others.happened")
    )
    [ordinary] = add(stores, envelope())
    stores.half.resolve([sent], COMMIT)
    stores.half.resolve([undone], ROLLBACK)
    found = stores.half.half_types([half, sent, undone, ordinary, new_event_id()])
    assert found == {half: TYPE}
    assert stores.half.half_types([other]) == {other: "others.happened"}


# --- an operator ----------------------------------------------------------------------------------


def use_up(stores: Stores, event_id: UUID) -> None:
    change(stores, event_id, checks=15, last_error="nobody home")
    let_time_pass(stores, event_id)


def test_message_waits_for_an_operator_after_the_last_check(stores: Stores) -> None:
    [event_id] = prepare(stores)
    use_up(stores, event_id)
    assert named(claim_checks(stores)) == []
    assert [e.id for e in stores.half.park(limit=10)] == [event_id]
    after = row(stores, event_id)
    assert after["status"] == "UNRESOLVED"
    assert after["last_error"] == "15 checks are used up; the last one returned: nobody home"
    assert after["settled_at"] is not None
    assert claimed(stores) == []


def test_the_last_check_has_its_interval_too(stores: Stores) -> None:
    [event_id] = prepare(stores)
    change(stores, event_id, checks=14)
    assert named(claim_checks(stores, event_id)) == [event_id]
    assert stores.half.park(limit=10) == []


def test_a_half_message_that_is_too_old_waits_for_an_operator(stores: Stores) -> None:
    [old, young] = prepare(stores, envelope(type="nobody.knows"), envelope())
    change(stores, old, due_at=datetime.now(UTC) - timedelta(seconds=1))
    assert [e.id for e in stores.half.park(limit=10)] == [old]
    assert row(stores, old)["last_error"].startswith("older than 3 days")
    assert row(stores, young)["status"] == "HALF"


def test_half_message_too_old_is_neither_checked_nor_claimed(stores: Stores) -> None:
    [event_id] = prepare(stores)
    let_time_pass(stores, event_id)
    change(stores, event_id, due_at=datetime.now(UTC) - timedelta(seconds=1))
    assert named(claim_checks(stores)) == []
    assert claimed(stores) == []


def test_parking_runs_in_batches(stores: Stores) -> None:
    for event_id in prepare(stores, *(envelope() for _ in range(3))):
        use_up(stores, event_id)
    assert [len(stores.half.park(limit=2)) for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_a_message_that_is_being_committed_is_not_parked(stores: Stores) -> None:
    busy, free = prepare(stores, envelope(), envelope())
    use_up(stores, busy)
    use_up(stores, free)
    with locked(stores, busy), with_settings(stores, lock_timeout="1s") as impatient:
        assert [e.id for e in impatient.half.park(limit=10)] == [free]
    assert stores.half.resolve([busy], COMMIT) == {busy: OutboxStatus.HALF}


@pytest.mark.parametrize(("outcome", "status"), [(COMMIT, "INIT"), (ROLLBACK, "DISCARDED")])
@pytest.mark.parametrize("parked", [True, False], ids=["unresolved", "half"])
def test_the_decision_of_an_operator_is_audited(
    stores: Stores, outcome: LocalOutcome, status: str, parked: bool
) -> None:
    [event_id] = prepare(stores, envelope(biz_key="b"))
    if parked:
        use_up(stores, event_id)
        stores.half.park(limit=10)
    message = stores.admin.find(event_id)
    assert message is not None
    stores.admin.decide([message], outcome, who="ann")
    after = row(stores, event_id)
    assert (after["status"], after["last_error"]) == (status, None)
    assert (after["settled_at"] is None) == (outcome is COMMIT)
    assert claimed(stores) == ([event_id] if outcome is COMMIT else [])
    with stores.engine.connect() as connection:
        [entry] = connection.execute(select(stores.tables.audit)).all()
    assert (entry.who, entry.action) == ("ann", f"half {outcome.lower()}")
    assert entry.subject == f"half message {event_id}"
    assert json.loads(entry.detail)["from"] == ("UNRESOLVED" if parked else "HALF")
    assert json.loads(entry.detail)["to"] == status


@pytest.mark.begun_by_hand
def test_an_operator_decides_about_all_or_none(stores: Stores) -> None:
    first, second = prepare(stores, envelope(), envelope())
    seen = [m for m in (stores.admin.find(first), stores.admin.find(second)) if m]
    stores.half.resolve([second], COMMIT)
    with pytest.raises(IllegalTransition, match=f"{second} is INIT"):
        stores.admin.decide(seen, ROLLBACK, who="ann")
    assert row(stores, first)["status"] == "HALF"
    with stores.engine.connect() as connection:
        assert connection.execute(select(stores.tables.audit)).all() == []


def test_unresolved_half_messages_are_listed_first(stores: Stores) -> None:
    half, unresolved, other = prepare(stores, envelope(), envelope(), envelope(topic="other"))
    use_up(stores, unresolved)
    stores.half.park(limit=10)
    add(stores, envelope())
    assert [m.envelope.id for m in stores.admin.latest(limit=10)] == [unresolved, half, other]
    assert [m.envelope.id for m in stores.admin.latest(limit=10, topic="other")] == [other]


def test_open_half_messages_are_listed_oldest_first(
    stores: Stores,
) -> None:
    written = prepare(stores, *(envelope() for _ in range(5)))
    now = datetime.now(UTC)
    for age, event_id in enumerate(written):
        change(stores, event_id, created_at=now - timedelta(minutes=age))
    delayed, discarded, *half = written
    change(stores, delayed, send_delay=60.0)
    stores.half.resolve([delayed], COMMIT)
    stores.half.resolve([discarded], ROLLBACK)
    assert [m.envelope.id for m in stores.admin.latest(limit=10)] == half[::-1]


def test_ordinary_event_is_not_found_as_a_half_message(stores: Stores) -> None:
    [event_id] = add(stores, envelope())
    assert stores.admin.find(event_id) is None


# --- the barrier ----------------------------------------------------------------------------------


def test_a_local_transaction_that_committed_is_found(stores: Stores) -> None:
    event_id = new_event_id()
    with stores.engine.begin() as connection:
        stores.barrier.enter(connection, [event_id])
    assert stores.barrier.outcome_of(event_id) is COMMIT
    assert stores.barrier.outcome_of(event_id) is COMMIT


def test_query_of_a_committed_barrier_writes_nothing(stores: Stores) -> None:
    event_id = new_event_id()
    with stores.engine.begin() as connection:
        stores.barrier.enter(connection, [event_id])
    written = []

    def note(*arguments: Any) -> None:
        written.extend(verb for verb in ("INSERT", "SET") if verb in arguments[2].upper())

    listen(stores.engine, "before_cursor_execute", note)
    assert stores.barrier.outcome_of(event_id) is COMMIT
    assert written == []


def test_rolled_back_local_transaction_is_shut_out(stores: Stores) -> None:
    event_id = new_event_id()
    with stores.engine.connect() as connection:
        stores.barrier.enter(connection, [event_id])
        connection.rollback()
    assert stores.barrier.outcome_of(event_id) is ROLLBACK
    assert stores.barrier.outcome_of(event_id) is ROLLBACK


@pytest.mark.begun_by_hand
def test_a_late_local_transaction_cannot_commit(stores: Stores) -> None:
    event_id = new_event_id()
    assert stores.barrier.outcome_of(event_id) is ROLLBACK
    with (
        pytest.raises(LateTransaction, match="resolved already"),
        stores.engine.begin() as connection,
    ):
        stores.barrier.enter(connection, [event_id])
    assert stores.barrier.outcome_of(event_id) is ROLLBACK


def test_barrier_has_entered_until_a_part_of_it_is_undone(stores: Stores) -> None:
    first, second = new_event_id(), new_event_id()
    with stores.engine.connect() as connection:
        stores.barrier.enter(connection, [first])
        connection.exec_driver_sql("SAVEPOINT a")
        stores.barrier.enter(connection, [second])
        assert stores.barrier.has_entered(connection, [first, second])
        connection.exec_driver_sql("ROLLBACK TO a")
        assert stores.barrier.has_entered(connection, [first])
        assert not stores.barrier.has_entered(connection, [first, second])
        connection.connection.rollback()
        assert not stores.barrier.has_entered(connection, [first])


def test_message_shut_out_by_a_check_has_not_entered(stores: Stores) -> None:
    """The row of the check exists for each transaction that queries it."""
    [event_id] = prepare(stores)
    assert stores.barrier.outcome_of(event_id) is ROLLBACK
    with stores.engine.connect() as connection:
        assert not stores.barrier.has_entered(connection, [event_id])


def test_outcome_of_a_transaction_in_flight_too_long_is_unknown(stores: Stores) -> None:
    event_id = new_event_id()
    with stores.engine.connect() as connection:
        stores.barrier.enter(connection, [event_id])
        assert stores.barrier.outcome_of(event_id) is UNKNOWN
        connection.commit()
    assert stores.barrier.outcome_of(event_id) is COMMIT


def test_error_other_than_a_lock_timeout_is_not_an_outcome(stores: Stores) -> None:
    with stores.engine.begin() as connection:
        stores.tables.barrier.drop(connection)
    with pytest.raises(DBAPIError, match="shield_barrier"):
        stores.barrier.outcome_of(new_event_id())


@pytest.mark.begun_by_hand
def test_barrier_in_autocommit_is_refused(stores: Stores) -> None:
    with stores.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(TransactionRefused, match="AUTOCOMMIT"):
            stores.barrier.enter(connection, [new_event_id()])


def test_a_barrier_is_entered_over_any_engine_of_its_database(stores: Stores) -> None:
    event_id = new_event_id()
    same = create_engine(stores.engine.url)
    with same.begin() as connection:
        stores.barrier.enter(connection, [event_id])
    same.dispose()
    assert stores.barrier.outcome_of(event_id) is COMMIT


def test_a_barrier_is_not_entered_in_another_database(stores: Stores, tmp_path: Path) -> None:
    other = create_engine(migrated_sqlite(tmp_path / "other.db", shards=SHARDS))
    with (
        pytest.raises(TransactionRefused, match=r"leads to sqlite.*other\.db"),
        other.begin() as connection,
    ):
        stores.barrier.enter(connection, [new_event_id()])
    other.dispose()


def test_old_barrier_rows_are_purged_in_batches(stores: Stores) -> None:
    old = [UUID(int=new_event_id().int - (10**9 << 80)) for _ in range(3)]  # 11 days
    with stores.engine.begin() as connection:
        stores.barrier.enter(connection, [*old, new_event_id()])
    b = stores.tables.barrier
    with stores.engine.begin() as connection:
        long_ago = datetime.now(UTC) - timedelta(days=8)
        connection.execute(update(b).where(b.c.event_id.in_(old[1:])).values(entered_at=long_ago))
    week = timedelta(days=7)
    first = stores.purge.purge_barrier(older_than=week, limit=1)
    assert (first.removed, first.more) == (1, True)
    stores.purge.purge_barrier(older_than=week, limit=1)
    last = stores.purge.purge_barrier(older_than=week, limit=1)
    assert (last.removed, last.more) == (0, False)
    with stores.engine.connect() as connection:
        left = set(connection.scalars(select(b.c.event_id)))
    assert old[0] in left
    assert len(left) == 2


def test_types_with_a_check_due_are_found_by_one_query(stores):
    assert stores.half.types_due([TYPE, "others.happened"]) == []
    prepare(stores, envelope(type="others.happened"), envelope(type="others.happened"))
    prepare(stores, immunity=timedelta(0))
    assert stores.half.types_due([TYPE, "others.happened", 'o"dd']) == [TYPE], "one is immune"
    prepare(stores, envelope(type="others.happened"), immunity=timedelta(0))
    assert set(stores.half.types_due([TYPE, "others.happened"])) == {TYPE, "others.happened"}
    assert stores.half.types_due(["others.happened"]) == ["others.happened"]
    assert stores.half.types_due([]) == []
