"""Stories of a service that takes no part: its events, and rollbacks of them.

No verdict concerns these rows. A run reports those that wait for an operator, or that no process
moves. Under a new name of a service, it likewise reports rows of the former name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shieldtx.domain.events import foreign_topic
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from tests.verification.oracle.healthy import some_time, some_type
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import Group, Judged, undo_of
from tests.verification.oracle.timeline import Life

O, I = OutboxStatus, InboxStatus  # noqa: E741  short, for what happens in stories

FOREIGN = "crm"


def is_received_from_a_foreign_source(h: History) -> None:
    """A group applies an event of another service, or no consumer takes it."""
    arrival = _received(h)
    if h.random.random() < 0.5:
        h.applied(arrival, arrival.born_at + 1)


def foreign_event_is_taken_back(h: History) -> None:
    """A group gives such an event up; a service that did not write it may receive the rollback."""
    arrival = _received(h)
    at = int(arrival.born_at) + 1
    arrival.becomes(I.PROCESSING, at, attempts=1, lease_until=at + 1)
    rollback = h.gave_up(arrival, at)
    outcome = h.random.choice((O.INIT, O.FAILED, O.PROCESSED, O.PROCESSED, O.PROCESSED))
    if outcome is O.FAILED:
        rollback.becomes(O.PROCESSING, at, attempts=3, lease_until=at + 1)
        rollback.becomes(O.FAILED, at + 1, last_error=_some_error(h))
    if outcome is not O.PROCESSED:
        return
    h.sent(rollback, at)
    service = h.random.choice(h.setting.services)
    undo = Group(service=service, name=undo_of(service), upstreams=(), types=())
    undone = h.received(rollback, undo, at, status=I.INIT)
    outcome = h.random.choice((I.INIT, I.DEAD, I.PROCESSED))
    if outcome is I.DEAD:
        undone.becomes(I.PROCESSING, at, attempts=3, lease_until=at + 1)
        undone.becomes(I.DEAD, at + 1, last_error=_some_error(h))
    elif outcome is I.PROCESSED:
        h.applied(undone, at + 1)


def _received(h: History) -> Life:
    """Let a group receive an event that is in no outbox of the services."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    h.lives.remove(event)
    event.source = FOREIGN
    if int(at) % 2:
        # From a topic that other software writes.
        event.columns["topic"] = foreign_topic("legacy.orders")
    return h.received(event, h.random.choice(groups), at, status=I.INIT)


def _some_error(h: History) -> str | None:
    return h.random.choice(("refused", None))


def must_tell(h: History, night: Judged) -> bool:
    """Return whether such a row waits for an operator, or no process moves it."""
    return any(_waits(row, night) for row in _of_others(h, night))


def may_tell(h: History, night: Judged) -> bool:
    """Return whether such a row waits: another row of its key may have blocked it."""
    return any(row["settled_at"] is None for row in _of_others(h, night))


def _of_others(h: History, night: Judged) -> Iterator[dict[str, Any]]:
    names = {night.called(service) for service in h.setting.services}
    for life in h.lives:
        row = life.at(night.at)
        is_rollback = life.kind is TxKind.ROLLBACK
        is_of_theirs = not is_rollback or life.columns["causation_source"] in names
        is_judged = is_of_theirs and life.source in names
        # An outbox row of another source is reported for that reason already.
        is_theirs = life.group is not None or life.source in names
        if row is not None and is_theirs and not is_judged:
            yield row


def _waits(row: dict[str, Any], night: Judged) -> bool:
    if row["settled_at"] is not None:
        return row["status"] in {O.FAILED, I.DEAD}
    born_at = row["received_at"] if "received_at" in row else row["created_at"]
    moved = max(born_at, row["due_at"], row.get("lease_until") or 0)
    return row["key"] is None and moved < night.watermark


OF_FOREIGN_SOURCES = (is_received_from_a_foreign_source, foreign_event_is_taken_back)
