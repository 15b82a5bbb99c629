"""Which rows of a run are repaired, how, and what is asked of the databases for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.repair import Line, Note, RepairAction, Repaired, RepairedEvent, RowSeen
from shieldtx.reconcile.expectations import NOBODY
from shieldtx.reconcile.findings import TOPICS
from shieldtx.reconcile.listed_rows import ListedRow
from shieldtx.reconcile.repair import Repair
from shieldtx.reconcile.repair_decisions import (
    NAMED,
    OVERTAKEN,
    REPAIRED,
    TAKEN_BACK,
    Policy,
    Refusal,
    Step,
    step_of,
)
from shieldtx.reconcile.verdicts import Verdict

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
V, O, I = Verdict, OutboxStatus, InboxStatus  # noqa: E741  as short as the tables below need them
LINE = Line(topic="orders.placed", key="k", written_at=NOW, before_open=False)
POLICY = Policy(services=frozenset({"orders", "stock"}))


def row(verdict: Verdict, sent: Any = O.PROCESSED, received: Any = None, **more: Any) -> ListedRow:
    values = {
        "kind": TxKind.COMMIT,
        "upstream": "orders",
        "downstream": "stock",
        "group": "stock",
        "event_id": new_event_id(),
        "topic": "orders.placed",
        "verdict": verdict,
        "upstream_status": sent,
        "downstream_status": received,
        "upstream_attempts": 1,
        "attempts": None if received is None else 3,
        "published_at": NOW,
        "settled_at": None if received is None else NOW + HOUR,
    }
    return ListedRow(**(values | more))


@pytest.mark.parametrize(
    ("listed", "action", "service"),
    [
        (row(V.MISSING_DOWNSTREAM), RepairAction.PUBLISH_AGAIN, "orders"),
        (row(V.STUCK, O.PROCESSING), RepairAction.RELEASE_EVENT, "orders"),
        (row(V.STUCK, O.PROCESSING, I.PROCESSED), RepairAction.RELEASE_EVENT, "orders"),
        (row(V.STUCK, O.PROCESSING, I.PROCESSING), RepairAction.RELEASE_EVENT, "orders"),
        (row(V.STUCK, O.PROCESSED, I.PROCESSING), RepairAction.RELEASE_ATTEMPT, "stock"),
        (
            row(V.NEITHER_EFFECT_NOR_COMPENSATION, received=I.MAX_RECONSUMED),
            RepairAction.RAISE_ROLLBACK,
            "stock",
        ),
    ],
    ids=[
        "missing",
        "stuck in the outbox",
        "arrived",
        "stuck twice",
        "stuck in the inbox",
        "rollback owed",
    ],
)
def test_a_repairable_row_has_its_step(listed: ListedRow, action: RepairAction, service: str):
    step = step_of(listed, POLICY)

    assert isinstance(step, Step)
    assert (step.action, step.service) == (action, service)
    assert (step.row.event_id, step.row.source) == (listed.event_id, "orders")


def test_a_row_of_an_outbox_is_expected_as_the_run_saw_it():
    listed = row(V.MISSING_DOWNSTREAM)

    step = step_of(listed, POLICY)

    assert isinstance(step, Step)
    assert step.row == RowSeen(
        event_id=listed.event_id,
        source="orders",
        status=O.PROCESSED,
        settled_at=NOW,
        attempts=1,
    )
    awaited = RepairedEvent(event_id=listed.event_id, source="orders", group="stock")
    assert step.unless == ("stock", awaited)


def test_a_row_of_an_inbox_is_expected_as_the_run_saw_it():
    listed = row(V.NEITHER_EFFECT_NOR_COMPENSATION, received=I.MAX_RECONSUMED)

    step = step_of(listed, POLICY)

    assert isinstance(step, Step)
    assert step.row == RowSeen(
        event_id=listed.event_id,
        source="orders",
        group="stock",
        status=I.MAX_RECONSUMED,
        settled_at=NOW + HOUR,
        attempts=3,
    )


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (row(V.STUCK, O.HALF), "half message"),
        (row(V.STUCK, O.INIT), "nobody has it in hand"),
        (row(V.STUCK, O.PROCESSED, I.INIT), "nobody has it in hand"),
        (row(V.MISSING_DOWNSTREAM, group=NOBODY), "no group receives it"),
        (row(V.MISSING_DOWNSTREAM, downstream="mail"), "service 'mail' is not in this conf"),
        (row(V.MISSING_DOWNSTREAM, upstream="web"), "service 'web' is not in this conf"),
        (row(V.PARKED, O.FAILED), "--verdict PARKED"),
        (row(V.ABSENT_FROM_TOPIC, downstream=TOPICS), "--verdict ABSENT_FROM_TOPIC"),
    ],
    ids=[
        "half",
        "due",
        "waiting",
        "nobody",
        "unknown downstream",
        "unknown upstream",
        "parked",
        "absent",
    ],
)
def test_rows_left_to_an_operator_have_a_reason(listed: ListedRow, why: str):
    decision = step_of(listed, POLICY)

    assert isinstance(decision, Refusal)
    assert why in decision.reason


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in {*REPAIRED, *NAMED}])
def test_every_other_verdict_is_answered_by_its_advice(verdict: Verdict):
    decision = step_of(row(verdict, received=I.PROCESSED), POLICY)

    assert decision == Refusal(reason=verdict.advice)


@pytest.mark.parametrize(
    ("listed", "action"),
    [
        (row(V.PARKED, O.FAILED), RepairAction.REPLAY_EVENT),
        (
            row(V.PARKED, O.PROCESSED, I.DEAD, kind=TxKind.ROLLBACK),
            RepairAction.REPLAY_COMPENSATION,
        ),
        (
            row(V.ABSENT_FROM_TOPIC, downstream=TOPICS, group="orders.placed"),
            RepairAction.PUBLISH_AGAIN,
        ),
    ],
    ids=["failed", "dead", "absent"],
)
def test_what_has_to_be_named_is_repaired_when_it_is(listed: ListedRow, action: RepairAction):
    named = Policy(services=POLICY.services, named=frozenset(NAMED))

    step = step_of(listed, named)

    assert isinstance(step, Step)
    assert step.action is action


def test_an_unresolved_half_message_is_refused_even_when_named():
    named = Policy(services=POLICY.services, named=frozenset({V.PARKED}))

    assert isinstance(step_of(row(V.PARKED, O.UNRESOLVED), named), Refusal)


@pytest.mark.parametrize(
    "listed",
    [
        row(V.MISSING_DOWNSTREAM),
        row(V.ABSENT_FROM_TOPIC, downstream=TOPICS),
        row(V.NEITHER_EFFECT_NOR_COMPENSATION, received=I.MAX_RECONSUMED),
    ],
    ids=lambda listed: listed.verdict,
)
def test_what_others_may_have_purged_is_not_sent_once_more(listed: ListedRow):
    named = frozenset({V.ABSENT_FROM_TOPIC})
    old = Policy(services=POLICY.services, named=named, young_since=NOW + 2 * HOUR)
    young = Policy(services=POLICY.services, named=named, young_since=NOW)

    decision = step_of(listed, old)

    assert isinstance(decision, Refusal)
    assert "purged" in decision.reason
    assert isinstance(step_of(listed, young), Step)


@pytest.mark.parametrize("verdict", [V.MISSING_DOWNSTREAM, V.ABSENT_FROM_TOPIC])
def test_what_unknown_services_receive_is_not_sent_once_more_even_when_named(verdict: Verdict):
    others = {"orders": frozenset({"orders.placed"}), "stock": frozenset({"orders.paid"})}
    policy = Policy(services=POLICY.services, named=frozenset(Verdict), for_others=others)

    decision = step_of(row(verdict), policy)

    assert isinstance(decision, Refusal)
    assert "services that take no part in this" in decision.reason
    assert isinstance(step_of(row(verdict, topic="orders.paid"), policy), Step)


class Databases:
    """Both services' databases, which remember what they were asked to do."""

    def __init__(
        self,
        *,
        arrived: set[RepairedEvent] = frozenset(),
        gone: set[UUID] = frozenset(),
        behind: set[UUID] = frozenset(),
        open_: set[UUID] = frozenset(),
    ) -> None:
        self.open = open_
        self.arrived = arrived
        self.gone = gone
        self.behind = behind
        self.batches: list[tuple[RepairAction, int, Note]] = []

    def received(self, events: Sequence[RepairedEvent]) -> set[RepairedEvent]:
        return self.arrived.intersection(events)

    def taken_back(self, events: Sequence[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        return {event for event in events if event[0] in self.gone}

    def lines(self, ids: Sequence[UUID]) -> dict[UUID, Line]:
        return {each: LINE for each in ids if each not in self.open} | {
            each: replace(LINE, before_open=True) for each in self.open.intersection(ids)
        }

    def received_later(self, group: str, source: str, lines: Mapping[UUID, Line]) -> set[UUID]:
        assert (group, source) == ("stock", "orders")
        return self.behind.intersection(lines)

    def repair(
        self, action: RepairAction, rows: Sequence[RowSeen], *, note: Note, **_: bool
    ) -> Repaired:
        self.batches.append((action, len(rows), note))
        return Repaired(done=len(rows))


def repair(databases: Databases, policy: Policy = POLICY, **more: Any) -> Repair:
    stores = {"orders": databases, "stock": databases}
    return Repair(stores=stores, policy=policy, run_id="r1", who="ann@desk", **more)


def test_rows_go_in_batches_of_one_kind_and_the_rest_at_the_end():
    databases = Databases()
    missing = [row(V.MISSING_DOWNSTREAM) for _ in range(7)]
    stuck = [row(V.STUCK, O.PROCESSING) for _ in range(2)]

    report = repair(databases, batch=3).run([*missing[:4], *stuck, *missing[4:]])

    assert sorted((action, rows) for action, rows, _ in databases.batches) == [
        (RepairAction.PUBLISH_AGAIN, 1),
        (RepairAction.PUBLISH_AGAIN, 3),
        (RepairAction.PUBLISH_AGAIN, 3),
        (RepairAction.RELEASE_EVENT, 2),
    ]
    assert report.repaired == {
        (V.MISSING_DOWNSTREAM, RepairAction.PUBLISH_AGAIN): Repaired(done=7),
        (V.STUCK, RepairAction.RELEASE_EVENT): Repaired(done=2),
    }
    assert {note for *_, note in databases.batches} == {
        Note(who="ann@desk", run_id="r1", verdict="MISSING_DOWNSTREAM"),
        Note(who="ann@desk", run_id="r1", verdict="STUCK"),
    }


def test_what_has_arrived_since_the_run_is_not_published_again():
    late, missing = row(V.MISSING_DOWNSTREAM), row(V.MISSING_DOWNSTREAM)
    arrived = RepairedEvent(event_id=late.event_id, source="orders", group="stock")
    databases = Databases(arrived={arrived})

    report = repair(databases).run([late, missing])

    assert [rows for _, rows, _ in databases.batches] == [1]
    assert report.repaired == {
        (V.MISSING_DOWNSTREAM, RepairAction.PUBLISH_AGAIN): Repaired(done=1, needless=1)
    }


def test_what_is_refused_is_counted_by_its_reason():
    rows = [row(V.PAYLOAD_DIFFERS), row(V.PAYLOAD_DIFFERS), row(V.STUCK, O.INIT)]

    report = repair(Databases()).run(rows)

    assert not report.repaired
    assert sorted(report.refused.values()) == [1, 2]
    assert report.refused[V.PAYLOAD_DIFFERS, V.PAYLOAD_DIFFERS.advice] == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_was_taken_back_or_overtaken_is_counted_and_not_published_again(dry_run: bool):
    missing = [row(V.MISSING_DOWNSTREAM) for _ in range(6)]
    ids = [each.event_id for each in missing]
    databases = Databases(gone={ids[0]}, behind={ids[0], ids[1]}, open_={ids[2]})

    report = repair(databases, dry_run=dry_run, batch=2, looked_up=4).run(missing)

    assert report.refused == {
        (V.MISSING_DOWNSTREAM, TAKEN_BACK): 1,
        (V.MISSING_DOWNSTREAM, OVERTAKEN): 2,
    }
    assert report.repaired == {(V.MISSING_DOWNSTREAM, RepairAction.PUBLISH_AGAIN): Repaired(done=3)}
    assert [rows for _, rows, _ in databases.batches] == [1, 2]


def test_a_person_may_say_that_a_group_can_take_events_out_of_order():
    missing = [row(V.MISSING_DOWNSTREAM) for _ in range(2)]
    gone, behind = (each.event_id for each in missing)
    databases = Databases(gone={gone}, behind={behind})
    policy = Policy(services=POLICY.services, named=frozenset({V.MISSING_DOWNSTREAM}))

    report = repair(databases, policy).run(missing)

    assert report.refused == {(V.MISSING_DOWNSTREAM, TAKEN_BACK): 1}
    assert sum(repaired.done for repaired in report.repaired.values()) == 1
