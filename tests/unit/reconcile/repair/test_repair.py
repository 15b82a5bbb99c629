"""The rows of a run that a repair changes, how, and with which statements to the databases."""

from __future__ import annotations

import tracemalloc
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.hand_over import (
    Arrival,
    EventPosition,
    HandedOver,
    Key,
    KeyPosition,
    LaterPositions,
    Sent,
    Sibling,
)
from shieldtx.ports.repair import Note, RepairAction, Repaired, RepairedEvent, RowSeen
from shieldtx.reconcile.expectations import NO_GROUP, Others
from shieldtx.reconcile.findings import TOPICS
from shieldtx.reconcile.repair.decisions import (
    NAMED,
    OVERTAKEN,
    REPAIRED,
    TAKEN_BACK,
    Policy,
    step_of,
)
from shieldtx.reconcile.repair.limits import PART_BYTES
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.repair.lost_rows import LostRows
from shieldtx.reconcile.repair.repair import Repair
from shieldtx.reconcile.repair.rows_in_order import EventIds, RowsInOrder
from shieldtx.reconcile.repair.steps import HandOverStep, PublishStep, Refusal
from shieldtx.reconcile.verdicts import Verdict

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
V, O, I = Verdict, OutboxStatus, InboxStatus  # noqa: E741  short for the tables below
POLICY = Policy(services=frozenset({"orders", "stock"}))


def row(verdict: Verdict, sent: Any = O.PROCESSED, received: Any = None, **more: Any) -> ListedRow:
    values = {
        "kind": TxKind.COMMIT,
        "upstream": "orders",
        "downstream": "stock",
        "group": "stock",
        "event_id": new_event_id(),
        "topic": "orders.placed",
        "event_type": "orders.placed",
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
        (row(V.MISSING_DOWNSTREAM), RepairAction.HAND_OVER, "orders"),
        (row(V.MISSING_DOWNSTREAM, kind=TxKind.ROLLBACK), RepairAction.PUBLISH_AGAIN, "orders"),
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
        "rollback missing",
        "stuck in the outbox",
        "arrived",
        "stuck twice",
        "stuck in the inbox",
        "rollback owed",
    ],
)
def test_repairable_row_has_its_step(listed: ListedRow, action: RepairAction, service: str):
    step = step_of(listed, POLICY)

    assert not isinstance(step, Refusal)
    assert (step.action, step.service) == (action, service)
    assert (step.row.event_id, step.row.source) == (listed.event_id, "orders")


@pytest.mark.parametrize("kind", list(TxKind))
def test_outbox_row_is_expected_as_the_run_saw_it(kind: TxKind):
    listed = row(V.MISSING_DOWNSTREAM, kind=kind)

    step = step_of(listed, POLICY)

    assert isinstance(step, HandOverStep | PublishStep)
    assert step.row == RowSeen(
        event_id=listed.event_id,
        source="orders",
        status=O.PROCESSED,
        settled_at=NOW,
        attempts=1,
    )
    missing = step.missing if isinstance(step, HandOverStep) else step.publication.unless_received
    assert missing is not None
    assert missing.downstream == "stock"
    awaited = RepairedEvent(event_id=listed.event_id, source="orders", group="stock")
    assert missing.event(listed.event_id) == awaited


def test_inbox_row_is_expected_as_the_run_saw_it():
    listed = row(V.NEITHER_EFFECT_NOR_COMPENSATION, received=I.MAX_RECONSUMED)

    step = step_of(listed, POLICY)

    assert not isinstance(step, Refusal)
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
        (row(V.STUCK, O.INIT), "no process holds a lease on it"),
        (row(V.STUCK, O.PROCESSED, I.INIT), "no process holds a lease on it"),
        (row(V.MISSING_DOWNSTREAM, group=NO_GROUP), "no group receives it"),
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
def test_other_verdicts_are_refused_with_their_advice(verdict: Verdict):
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
def test_verdicts_to_be_named_are_repaired_when_named(listed: ListedRow, action: RepairAction):
    named = Policy(services=POLICY.services, named=frozenset(NAMED))

    step = step_of(listed, named)

    assert not isinstance(step, Refusal)
    assert step.action is action


def test_unresolved_half_message_is_refused_even_when_named():
    named = Policy(services=POLICY.services, named=frozenset({V.PARKED}))

    assert isinstance(step_of(row(V.PARKED, O.UNRESOLVED), named), Refusal)


WAYS_AND_RECEIVERS = pytest.mark.parametrize(
    ("listed", "receivers"),
    [
        (row(V.MISSING_DOWNSTREAM), {"stock"}),
        (row(V.MISSING_DOWNSTREAM, kind=TxKind.ROLLBACK), {"orders", "stock", "mail"}),
        (row(V.ABSENT_FROM_TOPIC, downstream=TOPICS), {"orders", "stock", "mail"}),
        (
            row(V.NEITHER_EFFECT_NOR_COMPENSATION, received=I.MAX_RECONSUMED),
            {"orders", "stock", "mail"},
        ),
    ],
    ids=["missing", "rollback missing", "absent", "rollback owed"],
)
"""Rows that would be sent again, and the services that may already have the effect."""


@WAYS_AND_RECEIVERS
def test_event_a_receiver_may_have_purged_is_not_sent_again(listed: ListedRow, receivers: set[str]):
    for service in ("orders", "stock", "mail"):
        ages = dict.fromkeys(("orders", "stock", "mail"), NOW) | {service: NOW + 2 * HOUR}
        policy = replace(POLICY, named=frozenset({V.ABSENT_FROM_TOPIC}), young_since=ages)

        decision = step_of(listed, policy)

        if service in receivers:
            assert isinstance(decision, Refusal)
            assert "purged" in decision.reason
        else:
            assert not isinstance(decision, Refusal)
    for young_since in ({"stock": NOW}, {}):
        decision = step_of(listed, replace(policy, young_since=young_since))
        assert not isinstance(decision, Refusal)


@WAYS_AND_RECEIVERS
def test_event_an_inbox_may_have_lost_is_not_sent_again(listed: ListedRow, receivers: set[str]):
    policy = replace(POLICY, named=frozenset({V.ABSENT_FROM_TOPIC}))
    for service in ("orders", "stock", "mail"):
        for since, is_lost in ((NOW + 2 * HOUR, True), (NOW, False)):
            lost = LostRows(whole_since={service: since})
            decision = step_of(listed, replace(policy, lost_rows=lost))
            assert isinstance(decision, Refusal) == (is_lost and service in receivers)
            if isinstance(decision, Refusal):
                assert f"`--restored {service}`" in decision.reason


@pytest.mark.parametrize("name", ["orders", "placed"], ids=["topic", "type"])
@pytest.mark.parametrize(
    "listed",
    [row(V.MISSING_DOWNSTREAM, kind=TxKind.ROLLBACK), row(V.ABSENT_FROM_TOPIC)],
    ids=["rollback missing", "absent"],
)
def test_event_for_unknown_services_is_not_sent_even_if_named(listed: ListedRow, name: str):
    listed = replace(listed, topic="orders", event_type="placed")
    other = replace(listed, topic="invoices", event_type="sent")
    others = {"orders": Others.named(name), "stock": Others.named("payments", "paid")}
    policy = Policy(services=POLICY.services, named=frozenset(Verdict), for_others=others)

    decision = step_of(listed, policy)

    assert isinstance(decision, Refusal)
    assert "services that take no part in this" in decision.reason
    assert isinstance(step_of(other, policy), PublishStep)
    assert isinstance(step_of(row(V.MISSING_DOWNSTREAM), policy), HandOverStep)


@pytest.mark.parametrize("verdict", [V.MISSING_DOWNSTREAM, V.ABSENT_FROM_TOPIC])
def test_rollback_of_an_event_for_others_is_not_sent_again(
    verdict: Verdict,
):
    """Unknown services compensate the event by its topic, whichever service has taken it back."""
    placed = row(verdict, kind=TxKind.ROLLBACK, upstream="stock", downstream="orders")
    policy = Policy(
        services=POLICY.services,
        named=frozenset(Verdict),
        for_others={"orders": Others.named("orders.placed")},
    )

    decision = step_of(placed, policy)

    assert isinstance(decision, Refusal)
    assert "services that take no part in this" in decision.reason
    paid = replace(placed, topic="orders.paid", event_type="orders.paid")
    assert isinstance(step_of(paid, policy), PublishStep)


def test_event_is_for_others_only_if_its_writer_declares_it():
    event = row(V.ABSENT_FROM_TOPIC, downstream=TOPICS)
    policy = Policy(
        services=POLICY.services,
        named=frozenset(Verdict),
        for_others={"stock": Others.named("orders.placed")},
    )

    assert isinstance(step_of(event, policy), PublishStep)


class Databases:
    """Both services' databases, which record the calls of a repair.

    Events are in the outbox in the order of their ids.
    """

    def __init__(
        self,
        *,
        arrived: set[RepairedEvent] = frozenset(),
        gone: set[UUID] = frozenset(),
        later: set[UUID] = frozenset(),
        sizes: Mapping[UUID, int] = MappingProxyType({}),
        discards: set[UUID] = frozenset(),
    ) -> None:
        self.arrived = arrived
        self.gone = gone
        self.later = later
        self.sizes = sizes
        self.discards = discards
        self.batches: list[tuple[RepairAction, int, Note]] = []
        self.handed: list[UUID] = []
        self.parts: list[int] = []
        self.compared: list[tuple[int, datetime | None]] = []

    def received(self, events: Sequence[RepairedEvent]) -> set[RepairedEvent]:
        return self.arrived.intersection(events)

    def taken_back(self, events: Sequence[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        return {event for event in events if event[0] in self.gone}

    def discarded(
        self, events: Sequence[tuple[UUID, str]], *, group: str | None = None
    ) -> set[tuple[UUID, str]]:
        assert group in {"stock", None}
        return {event for event in events if event[0] in self.discards}

    def positions(self, ids: Sequence[UUID]) -> dict[UUID, EventPosition]:
        return {
            each: EventPosition(
                seq=each.int >> 80,
                kind=TxKind.COMMIT,
                type="orders.placed",
                topic="orders.placed",
                key=str(each),
                written_at=NOW,
                unconfirmed=False,
                size=self.sizes.get(each, 1),
            )
            for each in ids
        }

    def now(self) -> datetime:
        return NOW

    def receivers(self, source: str) -> set[tuple[str, str]]:
        assert source == "orders"
        return {("stock", "orders.placed")}

    def siblings(
        self,
        keys: Collection[Key],
        *,
        since: datetime | None = None,
        later: LaterPositions | None = None,
    ) -> Iterator[Sibling]:
        del keys, since, later
        return iter(())

    def count_received(
        self, group: str, source: str, keys: Collection[Key], *, since: datetime
    ) -> dict[Key, int]:
        assert (group, source) == ("stock", "orders")
        del since
        return dict.fromkeys(keys, 0)

    def latest_received(
        self, group: str, source: str, keys: Collection[Key]
    ) -> dict[Key, datetime]:
        assert (group, source) == ("stock", "orders")
        self.compared.append((len(keys), None))
        later = {("orders.placed", str(event_id)): NOW + HOUR for event_id in self.later}
        return {key: later[key] for key in keys if key in later}

    def received_after(
        self, group: str, source: str, after: Mapping[Key, datetime], *, since: datetime | None
    ) -> Iterator[Arrival]:
        assert (group, source) == ("stock", "orders")
        if since is not None:
            self.compared.append((len(after), since))
        for topic, key in after:
            if UUID(key) in self.later:
                yield Arrival(
                    event_id=self.later_of(UUID(key)),
                    ordered_by=(topic, key),
                    written_at=NOW + HOUR,
                )

    @staticmethod
    def later_of(event_id: UUID) -> UUID:
        return UUID(int=event_id.int + (1 << 80))

    def sent(self, rows: Sequence[RowSeen], *, payloads: bool) -> Sent:
        self.parts.append(len(rows))
        return Sent(
            envelopes=[
                Envelope(
                    id=row.event_id,
                    type="orders.placed",
                    source="orders",
                    topic="orders.placed",
                    payload="{}" if payloads else "null",
                    time=NOW,
                )
                for row in rows
            ]
        )

    def hand_over(
        self,
        group: str,
        envelopes: Sequence[Envelope],
        *,
        note: Note,
        in_order: bool,
        dry_run: bool,
    ) -> HandedOver:
        del in_order
        assert group == "stock"
        assert {envelope.payload for envelope in envelopes} == {"null" if dry_run else "{}"}
        ids = [envelope.id for envelope in envelopes]
        self.batches.append((RepairAction.HAND_OVER, len(ids), note))
        self.handed += ids
        return HandedOver(done=frozenset(ids))

    def repair(
        self, action: RepairAction, rows: Sequence[RowSeen], *, note: Note, **_: bool
    ) -> Repaired:
        self.batches.append((action, len(rows), note))
        return Repaired(done=len(rows))


def repair(databases: Databases, policy: Policy = POLICY, **more: Any) -> Repair:
    stores = {"orders": databases, "stock": databases}
    return Repair(stores=stores, policy=policy, run_id="r1", who="ann@desk", **more)


def test_rows_go_in_batches_of_one_kind_and_the_rest_last():
    databases = Databases()
    missing = [row(V.MISSING_DOWNSTREAM) for _ in range(7)]
    stuck = [row(V.STUCK, O.PROCESSING) for _ in range(2)]

    report = repair(databases, batch=3).run([*missing[:4], *stuck, *missing[4:]])

    assert sorted((action, rows) for action, rows, _ in databases.batches) == [
        (RepairAction.HAND_OVER, 1),
        (RepairAction.HAND_OVER, 3),
        (RepairAction.HAND_OVER, 3),
        (RepairAction.RELEASE_EVENT, 2),
    ]
    assert report.repaired == {
        (V.MISSING_DOWNSTREAM, RepairAction.HAND_OVER): Repaired(done=7),
        (V.STUCK, RepairAction.RELEASE_EVENT): Repaired(done=2),
    }
    assert {note for *_, note in databases.batches} == {
        Note(who="ann@desk", run_id="r1", verdict="MISSING_DOWNSTREAM"),
        Note(who="ann@desk", run_id="r1", verdict="STUCK"),
    }


def test_event_that_has_arrived_is_not_handed_over():
    late, missing = row(V.MISSING_DOWNSTREAM), row(V.MISSING_DOWNSTREAM)
    arrived = RepairedEvent(event_id=late.event_id, source="orders", group="stock")
    databases = Databases(arrived={arrived})

    report = repair(databases).run([late, missing])

    assert [rows for _, rows, _ in databases.batches] == [1]
    assert report.repaired == {
        (V.MISSING_DOWNSTREAM, RepairAction.HAND_OVER): Repaired(done=1, needless=1)
    }


def test_refusals_are_counted_by_their_reasons():
    rows = [row(V.PAYLOAD_DIFFERS), row(V.PAYLOAD_DIFFERS), row(V.STUCK, O.INIT)]

    report = repair(Databases()).run(rows)

    assert not report.repaired
    assert sorted(report.refused.values()) == [1, 2]
    assert report.refused[V.PAYLOAD_DIFFERS, V.PAYLOAD_DIFFERS.advice] == 2


def test_rollback_that_has_arrived_is_not_published_again():
    late, missing = (row(V.MISSING_DOWNSTREAM, kind=TxKind.ROLLBACK) for _ in range(2))
    arrived = RepairedEvent(event_id=late.event_id, source="orders", group="stock")

    report = repair(Databases(arrived={arrived})).run([late, missing])

    assert report.repaired == {
        (V.MISSING_DOWNSTREAM, RepairAction.PUBLISH_AGAIN): Repaired(done=1, needless=1)
    }


@pytest.mark.parametrize("dry_run", [True, False])
def test_taken_back_or_overtaken_events_are_not_handed_over(dry_run: bool):
    """They are counted by their reasons."""
    missing = [row(V.MISSING_DOWNSTREAM) for _ in range(6)]
    ids = [each.event_id for each in missing]
    databases = Databases(gone={ids[0]}, later={ids[0], ids[1]})

    report = repair(databases, dry_run=dry_run, batch=2, looked_up=4).run(missing)

    assert report.refused == {
        (V.MISSING_DOWNSTREAM, TAKEN_BACK): 1,
        (V.MISSING_DOWNSTREAM, OVERTAKEN): 1,
    }
    assert report.repaired == {(V.MISSING_DOWNSTREAM, RepairAction.HAND_OVER): Repaired(done=4)}
    assert [rows for _, rows, _ in databases.batches] == [2, 2]


@pytest.mark.parametrize(("compared", "scans"), [(100, 1), (4, 3), (1, 3)])
def test_one_scan_finds_the_overtaken_of_many_events(compared: int, scans: int):
    """Each batch then queries the arrivals since that scan."""
    missing = [row(V.MISSING_DOWNSTREAM) for _ in range(12)]
    databases = Databases()

    repair(databases, batch=2, looked_up=4, compared=compared).run(missing)

    scanned = [since for _, since in databases.compared if since is None]
    assert len(scanned) == scans
    assert len(databases.compared) == scans + 6
    assert sum(keys for keys, since in databases.compared if since is None) == 12


def test_rollback_between_two_batches_prevents_the_hand_over():
    missing = [row(V.MISSING_DOWNSTREAM) for _ in range(6)]
    ids = sorted(each.event_id for each in missing)

    class Compensating(Databases):
        """The last event is taken back while the first ones are stored."""

        def hand_over(self, *given, **named):
            self.gone = {ids[-1]}
            return super().hand_over(*given, **named)

    databases = Compensating()
    report = repair(databases, batch=2, looked_up=6).run(missing)

    assert report.refused == {(V.MISSING_DOWNSTREAM, TAKEN_BACK): 1}
    assert ids[-1] not in databases.handed


def test_operator_may_allow_events_out_of_order():
    missing = [row(V.MISSING_DOWNSTREAM) for _ in range(3)]
    gone, later = (each.event_id for each in missing[:2])
    databases = Databases(gone={gone}, later={later})

    named = replace(POLICY, named=frozenset({V.MISSING_DOWNSTREAM}))
    assert repair(databases, named).run(missing).refused[V.MISSING_DOWNSTREAM, OVERTAKEN] == 1
    report = repair(databases, replace(POLICY, out_of_order=True)).run(missing)

    assert report.refused == {(V.MISSING_DOWNSTREAM, TAKEN_BACK): 1}
    assert list(report.repaired.values()) == [Repaired(done=2, out_of_order=1)]
    assert "--out-of-order" in OVERTAKEN


def test_all_parts_are_handed_over_in_outbox_order():
    missing = [row(V.MISSING_DOWNSTREAM, event_id=UUID(int=n << 80)) for n in range(50)]
    listed = [*missing[1::2], *missing[::2][::-1]]
    databases = Databases()

    repair(databases, batch=3, looked_up=7).run(listed)

    assert databases.handed == [each.event_id for each in missing]


def test_payloads_are_read_in_parts_of_a_bounded_size():
    missing = [row(V.MISSING_DOWNSTREAM, event_id=UUID(int=n << 80)) for n in range(8)]
    sizes = [1, PART_BYTES - 1, 1, PART_BYTES, 3 * PART_BYTES, 5, 6, PART_BYTES - 11]
    by_id = {each.event_id: size for each, size in zip(missing, sizes, strict=True)}
    databases = Databases(sizes=by_id)

    repair(databases).run(missing)

    assert databases.parts == [2, 1, 1, 1, 3]
    assert [rows for _, rows, _ in databases.batches] == databases.parts, "one transaction each"


def test_many_missing_events_take_little_memory():
    """Forty bytes a row, where a listed row takes a thousand."""
    tracemalloc.start()
    rows = RowsInOrder("orders")
    for n in range(100_000):
        seen = RowSeen(
            event_id=UUID(int=n),
            source="orders",
            status=O.PROCESSED,
            settled_at=NOW + n * timedelta(microseconds=1),
            attempts=1,
        )
        rows.add(position(100_000 - n), seen)
    parts = rows.parts(5_000)
    first = next(parts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 20_000_000
    assert first[0] == seen
    assert sum(map(len, parts)) == 95_000


def test_event_ids_are_distinguished_in_little_memory():
    ids = [new_event_id() for _ in range(50_000)]
    tracemalloc.start()
    known = EventIds()
    known.add(ids[:40_000:2])
    known.add(ids[1:40_000:2])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1_000_000
    assert [event_id in known for event_id in ids] == [True] * 40_000 + [False] * 10_000


def test_ids_with_the_same_lower_half_are_distinguished():
    """UUIDv1 of one machine share their lower half, which identifies the machine."""
    machine = 0x8000_00163E_AB12CD
    ids = [UUID(int=n << 64 | machine) for n in range(1, 201)]
    known = EventIds()
    known.add(ids[:100])

    assert [event_id in known for event_id in ids] == [True] * 100 + [False] * 100


def position(seq: int, *, at: float = 0, due: float | None = None) -> KeyPosition:
    """Return the place of an event that was written, and was due, some hours from now."""
    return KeyPosition(
        seq=seq,
        written_at=NOW + at * HOUR,
        delayed_until=None if due is None else NOW + due * HOUR,
    )


@pytest.mark.parametrize("size", [2, 100])
def test_delayed_rows_come_at_their_due_times(size: int):
    rows = RowsInOrder("orders")
    in_order = [
        position(2, at=0.5),
        position(1, at=0, due=1),  # written first, sent after rows written meanwhile
        position(3, at=0.6, due=1),
        position(4, at=2),
        position(5, at=1.9),  # a clock was set back
        position(6, at=2, due=5),
    ]
    ids = {each: new_event_id() for each in in_order}
    for each in (in_order[n] for n in (4, 1, 5, 0, 3, 2)):
        rows.add(
            each,
            RowSeen(
                event_id=ids[each],
                source="orders",
                status=O.PROCESSED,
                settled_at=NOW,
                attempts=1,
            ),
        )

    read = [row.event_id for part in rows.parts(size) for row in part]

    assert read == [ids[each] for each in in_order]


def test_row_is_read_back_as_it_was_added():
    rows = RowsInOrder("orders")
    seen = [
        RowSeen(event_id=new_event_id(), source="orders", status=O.PROCESSED, **more)
        for more in (
            {"settled_at": None, "attempts": None},
            {"settled_at": datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "attempts": 0},
            {"settled_at": datetime(1960, 1, 1, tzinfo=UTC), "attempts": 7},
        )
    ]
    for each in seen:
        rows.add(position(-1), each)

    assert list(rows.parts(2)) == [seen[:2], seen[2:]]
