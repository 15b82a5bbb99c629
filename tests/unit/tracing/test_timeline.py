"""The timeline of an event from the data of services: order, gaps, chains, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from shieldtx.cli.trace_views import data_of, span, tree_of
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.tracing import MAX_TRACED_EVENTS, Facts, Identity, KnownRow, TracedAttempt
from shieldtx.tracing.model import EventTimeline, Hop
from shieldtx.tracing.timeline import first_cause, trace

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def number(n: int) -> UUID:
    return UUID(int=n)


class Known:
    """A service that returns the given facts."""

    def __init__(self, facts: Mapping[int, Facts]) -> None:
        self._facts = facts

    def facts(self, event_id: UUID) -> Facts:
        return self._facts.get(event_id.int, Facts())


def identity(n: int = 1, **given: Any) -> Identity:
    standard = {
        "event_id": number(n),
        "type": "orders.placed",
        "source": "orders",
        "topic": "orders",
        "kind": TxKind.COMMIT,
        "operation": "INSERT",
        "key": "k",
        "biz_key": None,
        "causation_id": None,
        "causation_source": None,
        "traceparent": None,
    }
    return Identity(**(standard | given))


def written(n: int = 1, **given: Any) -> KnownRow:
    of = {k: given.pop(k) for k in ("source", "kind", "causation_id") if k in given}
    standard: dict[str, Any] = {
        "identity": identity(n, **of),
        "group": None,
        "status": OutboxStatus.PROCESSED,
        "attempts": 1,
        "began_at": at(0),
        "due_at": at(0),
        "lease_until": None,
        "settled_at": at(2),
        "reason": "",
    }
    return KnownRow(**(standard | given))


def received(n: int = 1, **given: Any) -> KnownRow:
    standard = {
        "group": "stock",
        "status": InboxStatus.PROCESSED,
        "began_at": at(3),
        "settled_at": at(4),
        "partition": 2,
        "offset": 7,
    }
    return written(n, **(standard | given))


def mark(attempt: int, outcome: str, seconds: float, **given: Any) -> TracedAttempt:
    standard: dict[str, Any] = {
        "group": None,
        "waited": 0.25,
        "took": 0.5,
        "partition": None,
        "offset": None,
        "reason": "",
    }
    return TracedAttempt(attempt=attempt, outcome=outcome, at=at(seconds), **(standard | given))


def life(n: int = 1, **services: Mapping[int, Facts]) -> EventTimeline:
    found = trace(number(n), {name: Known(facts) for name, facts in services.items()})
    assert found is not None
    return found


def steps_of(hop: Hop) -> list[tuple[str, datetime | None]]:
    return [(step.what, step.at) for step in hop.steps]


def test_timeline_of_unknown_event_is_none() -> None:
    assert trace(number(1), {"orders": Known({})}) is None


def test_each_attempt_to_send_has_its_claim_and_its_end() -> None:
    marks = [
        mark(1, "REFUSED", 1, reason="no such topic"),
        mark(2, "ACKNOWLEDGED", 2, partition=3, offset=9),
    ]
    [hop] = life(orders={1: Facts(written=written(attempts=2), marks=marks)}).hops
    assert steps_of(hop) == [
        ("WRITTEN", at(0)),
        ("CLAIMED", at(0.25)),
        ("NOT_PUBLISHED", at(1)),
        ("CLAIMED", at(1.25)),
        ("PUBLISHED", at(2)),
        ("PROCESSED", at(2)),
    ]
    refused, sent = hop.steps[2], hop.steps[4]
    assert (refused.outcome, refused.reason, refused.offset) == ("REFUSED", "no such topic", None)
    assert (sent.partition, sent.offset) == (3, 9)
    assert [step.after for step in hop.steps[1:3]] == [
        timedelta(seconds=0.25),
        timedelta(seconds=0.75),
    ]
    assert not hop.unknown


@pytest.mark.parametrize(
    ("row", "what", "until"),
    [
        ({"status": OutboxStatus.INIT, "due_at": at(60)}, "INIT", at(60)),
        ({"status": OutboxStatus.HALF}, "HALF", at(0)),
        ({"status": OutboxStatus.PROCESSING, "lease_until": at(30)}, "PROCESSING", at(30)),
    ],
)
def test_unsettled_event_is_shown_with_its_next_attempt(
    row: dict[str, Any], what: str, until: datetime
) -> None:
    [hop] = life(orders={1: Facts(written=written(settled_at=None, attempts=0, **row))}).hops
    last = hop.steps[-1]
    assert (last.what, last.at, last.until) == (what, None, until)


@pytest.mark.parametrize("status", list(OutboxStatus))
def test_every_state_of_an_outbox_row_is_shown(status: OutboxStatus) -> None:
    [hop] = life(orders={1: Facts(written=written(status=status))}).hops
    assert (hop.status, hop.steps[-1].what) == (status.value, status.value)


@pytest.mark.parametrize("status", list(InboxStatus))
def test_every_state_of_an_inbox_row_is_shown(status: InboxStatus) -> None:
    [hop] = life(stock={1: Facts(received=[received(status=status)])}).hops
    assert (hop.status, hop.steps[-1].what) == (status.value, status.value)


def test_rollback_is_compensated_or_moot() -> None:
    for compensated, what in ((number(9), "COMPENSATED"), (None, "MOOT")):
        row = received(kind=TxKind.ROLLBACK, compensated_id=compensated)
        [hop] = life(orders={1: Facts(received=[row])}).hops
        assert hop.steps[-1].what == what


def test_mark_that_settled_a_row_replaces_its_status() -> None:
    marks = [mark(1, "RETRIED", 5, group="stock"), mark(2, "REFUSED", 7, group="stock")]
    row = received(status=InboxStatus.MAX_RECONSUMED, attempts=2, settled_at=at(6.9))
    [hop] = life(stock={1: Facts(received=[row], marks=marks)}).hops
    assert [what for what, _ in steps_of(hop)] == [
        *("RECEIVED", "STARTED", "RETRIED", "STARTED", "REFUSED")
    ]
    lost = replace(row, status=InboxStatus.PROCESSED)
    [hop] = life(stock={1: Facts(received=[lost], marks=marks)}).hops
    assert steps_of(hop)[-1] == ("PROCESSED", at(6.9))


def test_marks_of_other_groups_and_of_relays_are_separate() -> None:
    marks = [mark(1, "ACKNOWLEDGED", 1), *(mark(1, "APPLIED", 4, group=g) for g in ("a", "b"))]
    rows = [received(group="a"), received(group="b")]
    out, a, b = life(own={1: Facts(written=written(), received=rows, marks=marks)}).hops
    assert [[what for what, _ in steps_of(hop)][1:] for hop in (out, a, b)] == [
        ["CLAIMED", "PUBLISHED", "PROCESSED"],
        ["STARTED", "APPLIED"],
        ["STARTED", "APPLIED"],
    ]


def test_attempts_without_a_trace_are_named() -> None:
    marks = [mark(2, "RETRIED", 5, group="stock")]
    row = received(status=InboxStatus.PROCESSING, attempts=4, settled_at=None)
    [hop] = life(stock={1: Facts(received=[row], marks=marks)}).hops
    [unknown] = hop.unknown
    assert unknown.startswith("when attempts 1, 3, 4 of 4 began and ended: not traced")


def test_record_position_may_come_from_the_receiving_service() -> None:
    found = life(orders={1: Facts(written=written())}, stock={1: Facts(received=[received()])})
    assert (found.hops[0].steps[-1].partition, found.hops[0].steps[-1].offset) == (2, 7)


def test_slow_clock_is_shown_unchanged() -> None:
    early = received(began_at=at(1.5))
    found = life(orders={1: Facts(written=written())}, stock={1: Facts(received=[early])})
    assert found.hops[1].steps[0].after == timedelta(seconds=-0.5)
    assert span(timedelta(seconds=-0.5), sign=True) == "-500.0 ms"
    assert span(timedelta(seconds=61), sign=True) == "+1 min 1 s"


def test_rollback_is_below_its_group_or_next_to_several() -> None:
    gave_up = {"status": InboxStatus.MAX_RECONSUMED}
    back = written(2, kind=TxKind.ROLLBACK, source="stock", causation_id=number(1))
    one = {
        1: Facts(received=[received(**gave_up), received(group="other")], caused=[number(2)]),
        2: Facts(written=back),
    }
    one[1] = replace(
        one[1], received=[received(**gave_up), received(group="b", status=InboxStatus.INIT)]
    )
    found = life(stock=one)
    assert [len(hop.caused) for hop in found.hops] == [1, 0]
    two = {
        1: Facts(
            received=[received(**gave_up), received(group="b", **gave_up)], caused=[number(2)]
        ),
        2: Facts(written=back),
    }
    found = life(stock=two)
    assert [len(hop.caused) for hop in found.hops] == [0, 0]
    assert [c.identity.event_id for c in found.caused] == [number(2)]


def test_caused_events_show_the_time_since_their_handler() -> None:
    marks = [mark(1, "REFUSED", 7, group="stock", took=2.0)]
    gave_up = received(status=InboxStatus.MAX_RECONSUMED)
    back = written(2, kind=TxKind.ROLLBACK, source="stock", causation_id=number(1), began_at=at(6))
    found = life(
        stock={
            1: Facts(received=[gave_up], marks=marks, caused=[number(2)]),
            2: Facts(written=back),
        }
    )
    assert steps_of(found.hops[0])[-2:] == [("STARTED", at(5)), ("REFUSED", at(7))]
    assert found.hops[0].caused[0].hops[0].steps[0].after == timedelta(seconds=1)


def test_tombstone_does_not_name_the_cause_of_its_event() -> None:
    tombstone = received(status=InboxStatus.FENCED, causation_id=number(9))
    found = life(stock={1: Facts(received=[tombstone])}, orders={1: Facts(written=written())})
    assert found.identity.causation_id is None


def test_circular_causes_are_listed_once() -> None:
    facts = {
        n: Facts(written=written(n, causation_id=number(3 - n)), caused=[number(3 - n)])
        for n in (1, 2)
    }
    found = life(orders=facts)
    [other] = found.caused
    assert (other.identity.event_id, other.caused) == (number(2), [])
    assert first_cause(number(1), {"orders": Known(facts)}) in {number(1), number(2)}


def test_event_with_two_causes_is_listed_once() -> None:
    facts = {
        1: Facts(written=written(1), caused=[number(2), number(3)]),
        2: Facts(written=written(2), caused=[number(3)]),
        3: Facts(written=written(3)),
    }
    found = life(orders=facts)
    assert [c.identity.event_id for c in found.caused] == [number(2)]
    assert [c.identity.event_id for c in found.caused[0].caused] == [number(3)]


def test_trace_is_limited_and_counts_the_omitted_events() -> None:
    many = range(2, MAX_TRACED_EVENTS + 12)
    facts = {1: Facts(written=written(1), caused=[number(n) for n in many])}
    facts |= {n: Facts(written=written(n)) for n in many}
    found = life(orders=facts)
    assert len(found.caused) == MAX_TRACED_EVENTS - 1
    assert f"11 more events that followed: {MAX_TRACED_EVENTS} are shown at most" in found.unknown


def test_first_cause_is_the_earliest_known_one() -> None:
    facts = {
        1: Facts(written=written(1, causation_id=number(99))),
        2: Facts(written=written(2, causation_id=number(1))),
        3: Facts(written=written(3, causation_id=number(2))),
    }
    assert first_cause(number(3), {"orders": Known(facts)}) == number(1)
    assert first_cause(number(50), {"orders": Known(facts)}) == number(50)


def test_foreign_text_in_a_trace_cannot_command_the_terminal() -> None:
    row = written(status=OutboxStatus.FAILED, reason="\x1b[2J[bold]no[/bold]")
    row = replace(row, identity=identity(key="\x1b[31mk"))
    tree = tree_of(life(orders={1: Facts(written=row)}), asked=[number(1)])
    labels = [str(tree.label), *(str(step.label) for step in tree.children[0].children)]
    assert not any("\x1b" in label for label in labels)
    assert any("\\x1b[2J[bold]no[/bold]" in label for label in labels)
    assert data_of(life(orders={1: Facts(written=row)}))["hops"][0]["steps"][1]["reason"]
