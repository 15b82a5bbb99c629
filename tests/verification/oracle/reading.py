"""The expected result of a run: reading and facts in plain Python, for the real rules.

Spark has its own way to read and to join. This module shares only the rules, the expectations and
the basis of a run with Spark, which are the subjects of the test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile import mistyped_names, observed
from shieldtx.reconcile.expectations import (
    Expectation,
    Member,
    Received,
    Route,
    Sent,
    Stream,
)
from shieldtx.reconcile.facts import Fact
from shieldtx.reconcile.observed import Past
from shieldtx.reconcile.routes import expectation_of
from shieldtx.reconcile.rules import PAIRS
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle import facts as facts_of
from tests.verification.oracle.ahead import is_ahead
from tests.verification.oracle.facts import Facts, Row, Rows, first_trace
from tests.verification.oracle.former_groups import to_be_compensated
from tests.verification.oracle.history import History, Pair
from tests.verification.oracle.setting import Judged, Setting
from tests.verification.oracle.timeline import Life

EventId = tuple[str, Any]
"""An event's source and id."""
_FOR_OPERATORS: Final = {OutboxStatus.FAILED, OutboxStatus.UNRESOLVED}
_UNJUDGED_FOR_OPERATORS: Final = {OutboxStatus.FAILED, InboxStatus.DEAD}


@dataclass(kw_only=True, slots=True)
class Reading:
    """One run over the rows of one night."""

    setting: Setting
    night: Judged
    rows: Rows
    moved_since: Mapping[str, float] = field(default_factory=dict)
    """By service; empty: a full run."""
    past: Past = field(default_factory=Past)
    """What earlier runs have seen."""

    def verdicts(self) -> dict[Pair, Verdict]:
        """Return the verdict of the run on each pair that it reads."""
        rows = self.rows
        routes = self._expectation(rows).routes
        looked_at = self._looked_at(rows)
        known = Facts.of(rows)
        found: dict[Pair, Verdict] = {}
        for pair, (sent, received, route) in _pairs(self._of_members(), routes).items():
            if looked_at is None or (pair.upstream, pair.event_id) in looked_at:
                facts = known.facts(pair, sent, received, route, self.night)
                found[pair] = PAIRS.judge(facts)
        return found

    def ambiguous(self, found: Mapping[Pair, Verdict]) -> set[Pair]:
        """Return the pairs that lack a row that was purged, or has never existed.

        For pairs with both rows, the missing row is an earlier one of the group.
        """
        sent = {(row["source"], row["event_id"]): row for row in self.rows.outbox}
        received = {(r["service"], r["group"], r["event_id"]): r for r in self.rows.inbox}
        known = Facts.of(self.rows)
        return {
            pair
            for pair, verdict in found.items()
            if self._is_ambiguous(
                pair,
                verdict,
                sent.get((pair.upstream, pair.event_id)),
                received.get((pair.downstream, pair.group, pair.event_id)),
                known,
            )
        }

    def ahead(self, found: Mapping[Pair, Verdict]) -> set[Pair]:
        """Return the pairs that are in flight for times in the future."""
        rows = [row for row in (*self.rows.outbox, *self.rows.inbox) if is_ahead(row, self.night)]
        events = {(row["source"], row["event_id"]) for row in rows}
        return {
            pair
            for pair, verdict in found.items()
            if verdict is Verdict.IN_FLIGHT and (pair.upstream, pair.event_id) in events
        }

    def _is_ambiguous(
        self, pair: Pair, verdict: Verdict, sent: Row | None, received: Row | None, known: Facts
    ) -> bool:
        if verdict in {Verdict.MATCHED, Verdict.REFUSED}:
            facts = known.facts(pair, sent, received, None, self.night)
            return facts_of.came_again(
                sent, received, self.night, answered=bool(facts[Fact.ANSWERED])
            )
        return verdict is Verdict.TOO_OLD and self._would_be_judged(pair, sent, received, known)

    def _would_be_judged(
        self, pair: Pair, sent: Row | None, received: Row | None, known: Facts
    ) -> bool:
        """Return whether a late arrival would be judged, if the event were not older than that."""
        horizon = self.night.horizon(pair.upstream, pair.downstream)
        if received is None:
            assert sent is not None
            was_sent = sent["status"] is OutboxStatus.PROCESSED
            return bool(was_sent and sent["unconfirmed"] and sent["settled_at"] >= horizon)
        if self._lacks_compensation(pair, sent, received, known):
            return bool(first_trace(sent, received) < horizon <= received["settled_at"])
        answered_at = known.rollbacks.get((pair.downstream, pair.upstream, pair.event_id))
        came_at = None
        if sent is None and received["status"] is not InboxStatus.FENCED:
            came_at = received["received_at"]
        if sent is not None and received["status"] is InboxStatus.PROCESSED:
            came_at = answered_at if pair.kind == TxKind.COMMIT else None
        if came_at is None or came_at < horizon:
            return False
        return bool(came_at - first_trace(sent, received) >= self.night.watermark - horizon)

    def _lacks_compensation(
        self, pair: Pair, sent: Row | None, received: Row, known: Facts
    ) -> bool:
        """Return whether a group has settled a rollback without any compensation of its event."""
        is_settled = received["status"] is InboxStatus.PROCESSED
        if pair.kind != TxKind.ROLLBACK or not is_settled:
            return False
        facts = known.facts(pair, sent, received, None, self.night)
        return not facts[Fact.ANSWERED] and facts[Fact.OWES] is not False

    def obstacles(self) -> list[str]:
        """Return why something cannot be judged."""
        rows, looked_at = self.rows, self._looked_at(self.rows)
        read = [
            row
            for row in rows.outbox
            if looked_at is None or (row["source"], row["event_id"]) in looked_at
        ]
        known = Facts.of(rows)
        counting = [row for row in read if self._needs_a_group(row, known)]
        expectation = self._expectation(Rows(outbox=counting, inbox=rows.inbox))
        found = [why for _, why in expectation.obstacles]
        found += self._waiting_for_others()
        found += self._waiting_of_others()
        found += [f"an event of {r['source']}" for r in rows.outbox if r["source"] != r["service"]]
        if not self.moved_since:
            sent, received = _types(rows)
            ever = [*received, *self.past.received]
            named = mistyped_names.mistyped_names(self._members(), sent, ever)
            found += [why for _, why in named]
        return found

    def _needs_a_group(self, row: Row, known: Facts) -> bool:
        """Return whether the type of a row needs a group: not for an event that is not due."""
        if row["kind"] is TxKind.ROLLBACK:
            return True
        if row["settled_at"] is None:
            return bool(known.moved_at(row, self.night) < self.night.watermark)
        return row["status"] is not OutboxStatus.DISCARDED

    def _waiting_for_others(self) -> list[str]:
        """Return the events for others that wait for an operator or for a relay."""
        known = Facts.of(self.rows)
        others = {member.name: member.others for member in self._members()}
        found = []
        for row in self.rows.outbox:
            if row["source"] != row["service"] or row["source"] not in others:
                continue
            if not others[row["source"]].covers(row["topic"], row["event_type"]):
                continue
            is_stuck = row["settled_at"] is None and (
                known.moved_at(row, self.night) < self.night.watermark
            )
            is_for_operators = row["status"] in _FOR_OPERATORS and self._is_read(row)
            if is_stuck or is_for_operators:
                found.append(f"an event for others: {row['event_id']}")
        return found

    def _waiting_of_others(self) -> list[str]:
        """Return the unjudged rows that wait for an operator, or that no process moves."""
        known = Facts.of(self.rows)
        names = {member.name for member in self._members()}
        judged = {id(row) for row in self._of_members().inbox}
        rollbacks = [
            row
            for row in self.rows.outbox
            if row["source"] in names and row["kind"] is TxKind.ROLLBACK
        ]
        rows = [row for row in self.rows.inbox if id(row) not in judged]
        rows += [row for row in rollbacks if _cause(row) not in names]
        return [
            f"a row of others: {row['event_id']}"
            for row in rows
            if (row["status"] in _UNJUDGED_FOR_OPERATORS and self._is_read(row))
            or (
                row["settled_at"] is None and known.moved_at(row, self.night) < self.night.watermark
            )
        ]

    def _members(self) -> list[Member]:
        setting = self.setting
        return [
            Member(
                name=self.night.called(service),
                groups=setting.expected(service, self.night),
                others=setting.others(service, self.night),
                former_groups=setting.former_groups(service, self.night),
            )
            for service in setting.services
        ]

    def _of_members(self) -> Rows:
        """Return the rows of these services' events."""
        names = {member.name for member in self._members()}
        inbox = [
            row
            for row in self.rows.inbox
            if row["source"] in names and (_cause(row) or row["source"]) in names
        ]
        return Rows(outbox=self.rows.outbox, inbox=inbox)

    def _expectation(self, rows: Rows) -> Expectation:
        sent, received = _types(rows)
        members = self._members()
        past = observed.remembered(members, self.past)
        return expectation_of(members, sent=sent, received={*received, *past})

    def received(self) -> tuple[Received, ...]:
        """Return the receipts of groups, by their rows and by earlier runs."""
        _, received = _types(self.rows)
        return (*{*received, *self.past.received},)

    def received_lately(self) -> tuple[Received, ...]:
        """Return what a run of an earlier release stores: the receipts left in the inboxes."""
        _, received = _types(self.rows)
        return observed.decisive(self._members(), received)

    def own_outbox(self) -> set[EventId] | None:
        """Return the events whose outbox row a further run reads; None: all."""
        if not self.moved_since:
            return None
        return {(r["source"], r["event_id"]) for r in self.rows.outbox if self._is_read(r)}

    def _looked_at(self, rows: Rows) -> set[EventId] | None:
        """Return the events of which a further run reads a row; None: all."""
        if not self.moved_since:
            return None
        read = [row for row in (*rows.outbox, *rows.inbox) if self._is_read(row)]
        taken_back = {
            (row["causation_source"], row["causation_id"])
            for row in read
            if row["kind"] is TxKind.ROLLBACK
        }
        effects = {
            (row["service"], row["group"], row["source"], row["event_id"])
            for row in read
            if row["status"] is InboxStatus.PROCESSED
        }
        without = {
            (row["source"], row["event_id"])
            for row in rows.inbox
            if (row["service"], row["group"], row["causation_source"], row["causation_id"])
            in effects
            and row["kind"] is TxKind.ROLLBACK
        }
        return {(row["source"], row["event_id"]) for row in read} | taken_back | without

    def _is_read(self, row: Row) -> bool:
        if row["settled_at"] is None:
            return True
        if row["status"] in {*_FOR_OPERATORS, InboxStatus.DEAD} and row["last_error"] is not None:
            return True
        since = self.moved_since.get(row["service"])
        return since is None or row["settled_at"] >= since


def rows_of(history: History, night: Judged) -> Rows:
    """Return all rows of a history as a night finds them."""
    outbox: list[Row] = []
    inbox: list[Row] = []
    for service in history.setting.services:
        for seq, life in history.rows(night, service):
            table = outbox if life.group is None else inbox
            table.append(_row(life, night, seq))
    return Rows(outbox=outbox, inbox=inbox)


def _row(life: Life, night: Judged, seq: int) -> Row:
    row = life.at(night.at)
    assert row is not None
    of_life = {
        "service": night.called(life.service),
        "source": life.source,
        "event_id": life.event_id,
    }
    return {
        "settled_at": None,
        "lease_until": None,
        "holds_key": False,
        "waiting": False,
        "unconfirmed": False,
        **row,
        **of_life,
        "kind": life.kind,
        "group": life.group,
        "seq": seq,
    }


def _types(rows: Rows) -> tuple[set[Sent], set[Received]]:
    sent = {
        Sent(
            upstream=row["source"],
            kind=row["kind"],
            topic=row["topic"],
            event_type=row["event_type"],
            causation_source=_cause(row),
        )
        for row in rows.outbox
        if row["source"] == row["service"]
    }
    received = {
        Received(
            downstream=row["service"],
            group=row["group"],
            source=row["source"],
            kind=row["kind"],
            topic=row["topic"],
            event_type=row["event_type"],
            causation_source=_cause(row),
        )
        for row in rows.inbox
    }
    return sent, received


def _cause(row: Row) -> str | None:
    cause: str | None = row["causation_source"] if row["kind"] is TxKind.ROLLBACK else None
    return cause


def _pairs(
    rows: Rows, routes: Iterable[Route]
) -> dict[Pair, tuple[Row | None, Row | None, Route | None]]:
    by_type: dict[tuple[Any, ...], list[Route]] = defaultdict(list)
    for route in routes:
        stream = route.stream
        writer = route.causation_source
        by_type[stream.kind, stream.upstream, route.topic, route.event_type, writer].append(route)
    pairs: dict[Pair, tuple[Row | None, Row | None, Route | None]] = {}
    for row in rows.outbox:
        type_ = row["kind"], row["source"], row["topic"], row["event_type"], _cause(row)
        for route in by_type[type_]:
            pairs[_pair(route.stream, route.group, row)] = (row, None, route)
    for row in rows.inbox:
        stream = Stream(kind=row["kind"], upstream=row["source"], downstream=row["service"])
        pair = _pair(stream, row["group"], row)
        sent, _, known = pairs.get(pair, (None, None, None))
        pairs[pair] = (sent, row, known)
    owed = to_be_compensated(rows)
    return {
        pair: (sent, received, route)
        for pair, (sent, received, route) in pairs.items()
        if received is not None
        or (route is not None and route.expected and not route.if_applied)
        or (route is not None and route.if_applied and _effect(pair, sent) in owed)
    }


def _effect(pair: Pair, sent: Row | None) -> tuple[Any, ...]:
    assert sent is not None
    return pair.downstream, pair.group, sent["causation_source"], sent["causation_id"]


def _pair(stream: Stream, group: str, row: Row) -> Pair:
    return Pair(stream.kind.value, stream.upstream, stream.downstream, group, row["event_id"])
