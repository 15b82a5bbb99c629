"""The facts about a pair that the rules need, in plain Python."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.expectations import Route
from shieldtx.reconcile.facts import Fact, Value
from tests.verification.oracle.history import Pair
from tests.verification.oracle.setting import Judged

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """All rows as one night finds them."""

    outbox: Sequence[Row]
    inbox: Sequence[Row]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The facts about other rows that a pair's verdict needs."""

    rollbacks: Mapping[tuple[str, str, Any], float]
    """By writing service and event taken back: the time of writing."""
    entitled: frozenset[tuple[str, str, Any]]
    compensations: Mapping[tuple[str, str, Any], float]
    """By service, group and event: the time of the compensation."""
    received_rollbacks: frozenset[tuple[str, str, Any]]
    applied: frozenset[tuple[str, str, str, Any]]
    """By service, group and source: the events whose effect the group has."""
    arrived: frozenset[tuple[str, str, str, Any]]
    """Likewise: the events of which the group has a row."""
    holders: Mapping[tuple[str, int, Any], float]
    """By service and row: until when an open row of its key blocks it."""
    settled: Mapping[tuple[Any, ...], Sequence[tuple[int, float]]]
    """By service and order: the numbers of settled rows, and their times."""

    @classmethod
    def of(cls, rows: Rows) -> Facts:
        """Compute the facts from all rows."""
        rollbacks: dict[tuple[str, str, Any], float] = {}
        for row in rows.outbox:
            if row["kind"] is TxKind.ROLLBACK:
                key = row["service"], row["causation_source"], row["causation_id"]
                rollbacks[key] = max(row["created_at"], rollbacks.get(key, row["created_at"]))
        compensations = {
            (row["service"], row["group"], row["compensated_id"]): row["settled_at"]
            for row in rows.inbox
            if row["compensated_id"] is not None
        }
        gave_up = {
            (row["service"], row["source"], row["event_id"])
            for row in rows.inbox
            if row["status"] is InboxStatus.MAX_RECONSUMED
        }
        undone = {(service, event_id) for service, _, event_id in compensations}
        passed_on = {
            (row["service"], row["causation_source"], row["causation_id"])
            for row in rows.outbox
            if (row["service"], row["event_id"]) in undone and row["causation_id"] is not None
        }
        return cls(
            rollbacks=rollbacks,
            entitled=frozenset(gave_up | passed_on),
            compensations=compensations,
            received_rollbacks=frozenset(
                (row["service"], row["group"], row["causation_id"])
                for row in rows.inbox
                if row["kind"] is TxKind.ROLLBACK
            ),
            applied=frozenset(
                (row["service"], row["group"], row["source"], row["event_id"])
                for row in rows.inbox
                if row["kind"] is TxKind.COMMIT and row["status"] is InboxStatus.PROCESSED
            ),
            arrived=frozenset(
                (row["service"], row["group"], row["source"], row["event_id"])
                for row in rows.inbox
                if row["kind"] is TxKind.COMMIT
            ),
            holders=_holders(rows),
            settled=_settled(rows),
        )

    def facts(
        self, pair: Pair, sent: Row | None, received: Row | None, route: Route | None, night: Judged
    ) -> dict[Fact, Value]:
        """Return the facts about a pair."""
        group = pair.downstream, pair.group
        row = sent or received
        assert row is not None
        if pair.kind == TxKind.COMMIT:
            event = pair.downstream, pair.upstream, pair.event_id
            answered_at = self.rollbacks.get(event)
            entitled = event in self.entitled
        else:
            answered_at = self.compensations.get((*group, row["causation_id"]))
            entitled = answered_at is not None
        undone_at = self.compensations.get((*group, pair.event_id))
        effect = (*group, row["causation_source"], row["causation_id"])
        is_own = row["causation_source"] == pair.downstream
        settled_at = None if received is None else received["settled_at"]
        moves = [self.moved_at(each, night) for each in (sent, received) if each is not None]
        last_move = max(*moves, answered_at or 0)
        limit = None if route is None else route.max_attempts
        kept_since = night.horizon(pair.upstream, pair.downstream)
        return {
            Fact.KIND: TxKind(pair.kind),
            Fact.UPSTREAM: None if sent is None else sent["status"],
            Fact.DOWNSTREAM: None if received is None else received["status"],
            Fact.SAME_PAYLOAD: _is_same(sent, received, "payload"),
            Fact.SAME_ENVELOPE: _is_same(
                sent, received, "topic", "event_type", "key", "biz_key", "operation"
            ),
            Fact.ANSWERED: answered_at is not None,
            Fact.ENTITLED: entitled or undone_at is not None,
            Fact.OWES: owes_rollback(received, kept_since)
            if pair.kind == TxKind.COMMIT
            else is_own or self._owes(effect, kept_since),
            Fact.UNDONE_FIRST: undone_at is not None
            and settled_at is not None
            and undone_at < settled_at,
            Fact.OVERTAKEN: (*group, pair.event_id) in self.received_rollbacks,
            Fact.WITHIN_LIMIT: limit is None or received is None or received["attempts"] <= limit,
            Fact.QUIET: last_move < night.watermark,
            Fact.KEPT: first_trace(sent, received) >= kept_since,
        }

    def _owes(self, effect: tuple[str, str, str, Any], kept_since: float) -> bool | None:
        # The ids of histories have a time that is older than all retentions.
        may_be_purged = effect not in self.arrived and kept_since > -math.inf
        return None if may_be_purged else effect in self.applied

    def moved_at(self, row: Row, night: Judged) -> float:
        """Return when a row has moved, or is due to."""
        born = row["created_at"] if row["group"] is None else row["received_at"]
        if row["settled_at"] is not None:
            return float(max(born, row["settled_at"]))
        holder = self.holders.get((row["service"], row["seq"], row["group"]), 0)
        # Until a moment ago, a recently settled row may have blocked this waiting one.
        is_next = row["status"] in _WAITING and not row["waiting"]
        settled = self.settled.get(_line(row), ()) if is_next else ()
        if any(seq < row["seq"] and at >= night.watermark for seq, at in settled):
            return night.at
        return float(max(born, row["due_at"], row["lease_until"] or 0, holder))


def _is_same(sent: Row | None, received: Row | None, *columns: str) -> bool:
    if sent is None or received is None or received["status"] is InboxStatus.FENCED:
        return True
    return all(sent[column] == received[column] for column in columns)


def first_trace(sent: Row | None, received: Row | None) -> float:
    """Return since when the missing row of a pair can have been settled."""
    if (
        sent
        and received
        and sent["kind"] is TxKind.COMMIT
        and sent["status"] is OutboxStatus.PROCESSED
        and not sent["unconfirmed"]
    ):
        # No group can have received it earlier.
        return float(min(sent["settled_at"], received["received_at"]))
    if received is not None:
        return float(min(received["event_time"], received["received_at"]))
    assert sent is not None
    # If the event was sent several times, its first record may have arrived long before.
    is_by_settlement = sent["settled_at"] is not None and not sent["unconfirmed"]
    return float(sent["settled_at"] if is_by_settlement else sent["created_at"])


def came_again(sent: Row | None, received: Row | None, night: Judged, *, answered: bool) -> bool:
    """Return whether a group may have had an event before, and have purged its row."""
    if sent is None or received is None or received["status"] not in _ACTED:
        return False
    if received["kind"] is TxKind.ROLLBACK and not answered:
        return False
    is_delayed = sent["waiting"] and not sent["holds_key"]
    due_at = sent["due_at"] if is_delayed else sent["created_at"]
    first = due_at if sent["unconfirmed"] else sent["settled_at"]
    is_lately = received["settled_at"] >= night.horizon(sent["service"], received["service"])
    return bool(is_lately and received["received_at"] - first >= night.memory(received["service"]))


_ACTED = {InboxStatus.PROCESSED, InboxStatus.MAX_RECONSUMED}


def owes_rollback(received: Row | None, kept_since: float) -> bool | None:
    """Return whether a group gave an event up, and wrote its rollback, recently enough."""
    if received is None or received["status"] is not InboxStatus.MAX_RECONSUMED:
        return None
    return True if received["settled_at"] >= kept_since else None


_WAITING = {OutboxStatus.INIT, InboxStatus.INIT}


def _line(row: Row) -> tuple[Any, ...]:
    """Return the value that orders the rows of a key; without a key, the row itself."""
    alone = row["seq"] if row["key"] is None else None
    topic = None if row["group"] is None else row["topic"]
    return row["service"], row["group"], topic, row["key"], alone


def _settled(rows: Rows) -> dict[tuple[Any, ...], list[tuple[int, float]]]:
    found: dict[tuple[Any, ...], list[tuple[int, float]]] = defaultdict(list)
    for row in (*rows.outbox, *rows.inbox):
        if row["settled_at"] is not None:
            found[_line(row)].append((row["seq"], row["settled_at"]))
    return found


def _holders(rows: Rows) -> dict[tuple[str, int, Any], float]:
    """Return for each open row queued after another of its key when that other row is due."""
    found: dict[tuple[str, int, Any], float] = {}
    lines: dict[tuple[Any, ...], Row] = {}
    for row in (*rows.outbox, *rows.inbox):
        if row["settled_at"] is not None or row["key"] is None:
            continue
        line = _line(row)
        holder = lines.get(line)
        if holder is not None:
            until = max(holder["due_at"], holder["lease_until"] or 0)
            found[row["service"], row["seq"], row["group"]] = until
        elif row["holds_key"] or row["group"] is not None:
            lines[line] = row
    return found
