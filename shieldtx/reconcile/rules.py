"""What a mismatch is: the rules that lead from facts to verdicts, as data.

Two books: PAIRS for an event and a consumer group, TOPICS for an event and its topic. Upstream is
the service that wrote the event, downstream the one whose consumer group receives it. A ROLLBACK
event travels back, so there the service that gave up is upstream. Downstream is the service that
wrote the event, and so is each one with a group that applied the event and compensates it.

Nothing here knows Spark: `judge` evaluates a book for one row, and
`spark/compare/verdict_expression.py` turns the same book into a column expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.facts import Fact, Value
from shieldtx.reconcile.verdicts import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A verdict, and the values of the facts that lead to it; a fact left out may be anything."""

    verdict: Verdict
    when: Mapping[Fact, frozenset[Value]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleSet:
    """Rules in order: the first one whose conditions all hold decides, and the last has none."""

    facts: tuple[Fact, ...]
    """What has to be known of a row."""
    rules: tuple[Rule, ...]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Every verdict of the book, in the order of first mention."""
        return tuple(dict.fromkeys(rule.verdict for rule in self.rules))

    def judge(self, facts: Mapping[Fact, Value]) -> Verdict:
        """Return the verdict on a row; KeyError where one of the book's facts is not given."""
        known = {fact: facts[fact] for fact in self.facts}
        return next(
            rule.verdict
            for rule in self.rules
            if all(known[fact] in allowed for fact, allowed in rule.when.items())
        )


def _rule(verdict: Verdict, **when: Iterable[Value]) -> Rule:
    conditions = {Fact(name): frozenset(values) for name, values in when.items()}
    return Rule(verdict=verdict, when=MappingProxyType(conditions))


_YES, _NO, _NONE = (True,), (False,), (None,)
_COMMIT, _ROLLBACK = (TxKind.COMMIT,), (TxKind.ROLLBACK,)
_SENT = (OutboxStatus.PROCESSED,)
_SENT_OR_PURGED = (*_SENT, *_NONE)
_OPEN_UPSTREAM = frozenset(OUTBOX.states) - OUTBOX.settled
_IN_LINE = _OPEN_UPSTREAM - {OutboxStatus.HALF}
_DONE, _GAVE_UP = (InboxStatus.PROCESSED,), (InboxStatus.MAX_RECONSUMED,)
_OPEN_DOWNSTREAM = frozenset(INBOX.states) - INBOX.settled

_V = Verdict
PAIRS = RuleSet(
    facts=(
        Fact.KIND,
        Fact.UPSTREAM,
        Fact.DOWNSTREAM,
        Fact.SAME_PAYLOAD,
        Fact.SAME_ENVELOPE,
        Fact.ANSWERED,
        Fact.ENTITLED,
        Fact.OWES,
        Fact.UNDONE_FIRST,
        Fact.OVERTAKEN,
        Fact.WITHIN_LIMIT,
        Fact.QUIET,
        Fact.KEPT,
    ),
    rules=(
        # What an event says never changes: it needs no watermark.
        _rule(_V.PAYLOAD_DIFFERS, same_payload=_NO),
        _rule(_V.ENVELOPE_DIFFERS, same_envelope=_NO),
        # A rollback that nothing called for. What calls for one may yet be read too late.
        _rule(
            _V.EFFECT_DESPITE_ROLLBACK,
            kind=_COMMIT,
            upstream_status=_SENT,
            downstream_status=_DONE,
            answered=_YES,
            entitled=_NO,
            quiet=_YES,
            kept=_YES,
        ),
        # Whoever's event it is. Nothing compensates it once more.
        _rule(
            _V.EFFECT_DESPITE_ROLLBACK,
            kind=_COMMIT,
            upstream_status=_SENT,
            downstream_status=_DONE,
            undone_first=_YES,
        ),
        # What called for a rollback may have been purged.
        _rule(
            _V.TOO_OLD,
            kind=_COMMIT,
            upstream_status=_SENT,
            downstream_status=_DONE,
            answered=_YES,
            entitled=_NO,
            quiet=_YES,
        ),
        _rule(
            _V.ATTEMPTS_DIFFER,
            kind=_COMMIT,
            upstream_status=_SENT,
            downstream_status=_GAVE_UP,
            answered=_YES,
            within_limit=_NO,
        ),
        # Ends that nothing can change any more: they need no watermark either.
        _rule(_V.MATCHED, kind=_COMMIT, upstream_status=_SENT, downstream_status=_DONE),
        _rule(
            _V.MATCHED,
            kind=_ROLLBACK,
            upstream_status=_SENT,
            downstream_status=_DONE,
            answered=_YES,
        ),
        # The group gave the event of another service up, refused it, or never received it.
        _rule(
            _V.MATCHED,
            kind=_ROLLBACK,
            upstream_status=_SENT,
            downstream_status=_DONE,
            owes=_NO,
        ),
        _rule(
            _V.REFUSED,
            kind=_COMMIT,
            upstream_status=_SENT,
            downstream_status=_GAVE_UP,
            answered=_YES,
        ),
        _rule(
            _V.REFUSED,
            kind=_COMMIT,
            upstream_status=_SENT,
            downstream_status=(InboxStatus.FENCED,),
            overtaken=_YES,
        ),
        _rule(
            _V.PARKED,
            kind=_ROLLBACK,
            upstream_status=_SENT,
            downstream_status=(InboxStatus.DEAD,),
        ),
        # It waits for an operator longer than the upstream keeps the rollback.
        _rule(
            _V.PARKED,
            kind=_ROLLBACK,
            upstream_status=_NONE,
            downstream_status=(InboxStatus.DEAD,),
            kept=_NO,
        ),
        _rule(
            _V.PARKED,
            upstream_status=(OutboxStatus.FAILED, OutboxStatus.UNRESOLVED),
            downstream_status=_NONE,
        ),
        # Nothing else discards a rollback: none is delayed, and none is a half message.
        _rule(
            _V.DISCARDED,
            kind=_ROLLBACK,
            upstream_status=_SENT,
            downstream_status=(InboxStatus.DISCARDED,),
        ),
        _rule(
            _V.DISCARDED,
            kind=_ROLLBACK,
            upstream_status=(OutboxStatus.DISCARDED,),
            downstream_status=_NONE,
        ),
        _rule(_V.NEVER_SENT, upstream_status=(OutboxStatus.DISCARDED,), downstream_status=_NONE),
        # Whatever else is to be seen may yet change.
        _rule(_V.IN_FLIGHT, quiet=_NO),
        # One side is open. A relay that died between acknowledgement and settlement leaves an open
        # row whose event has arrived, and so does a repair that publishes it again.
        _rule(_V.STUCK, upstream_status=_IN_LINE),
        _rule(_V.STUCK, upstream_status=_OPEN_UPSTREAM, downstream_status=_NONE),
        _rule(_V.STUCK, upstream_status=_SENT, downstream_status=_OPEN_DOWNSTREAM),
        _rule(_V.STUCK, upstream_status=_NONE, downstream_status=_OPEN_DOWNSTREAM, kept=_NO),
        # One side lacks a row. Where rows of its age are purged, that says nothing.
        _rule(_V.MISSING_DOWNSTREAM, upstream_status=_SENT, downstream_status=_NONE, kept=_YES),
        _rule(_V.TOO_OLD, upstream_status=_SENT, downstream_status=_NONE),
        # A tombstone is as old as its rollback: the event may have been written long before.
        _rule(
            _V.TOO_OLD,
            kind=_COMMIT,
            upstream_status=_NONE,
            downstream_status=(InboxStatus.FENCED,),
            overtaken=_YES,
        ),
        _rule(_V.UNKNOWN_UPSTREAM, upstream_status=_NONE, kept=_YES),
        # The answer is missing. That shows in the group's own database, whatever the upstream has
        # purged.
        _rule(
            _V.NEITHER_EFFECT_NOR_COMPENSATION,
            kind=_COMMIT,
            upstream_status=_SENT_OR_PURGED,
            downstream_status=_GAVE_UP,
            answered=_NO,
            owes=_YES,
        ),
        _rule(_V.TOO_OLD, upstream_status=_NONE),
        _rule(_V.TOO_OLD, kind=_COMMIT, upstream_status=_SENT, downstream_status=_GAVE_UP),
        _rule(
            _V.ROLLBACK_NOT_COMPENSATED,
            kind=_ROLLBACK,
            upstream_status=_SENT,
            downstream_status=_DONE,
            owes=_YES,
            kept=_YES,
        ),
        # Nor is it known what the group owed, where its row of the event may have been purged.
        _rule(_V.TOO_OLD, kind=_ROLLBACK, upstream_status=_SENT, downstream_status=_DONE),
        # A tombstone outlives the rollback that left it by no more than a moment.
        _rule(
            _V.TOO_OLD,
            kind=_COMMIT,
            upstream_status=_SENT,
            downstream_status=(InboxStatus.FENCED,),
            kept=_NO,
        ),
        # What is left are two rows that cannot both be right.
        _rule(_V.STATUS_DISAGREES),
    ),
)
"""On an event and a group that got it or should have. One side at least has a row."""

_UNSENT = frozenset(OUTBOX.states) - {OutboxStatus.PROCESSED}
_PERHAPS_SENT = (OutboxStatus.INIT, OutboxStatus.PROCESSING, OutboxStatus.PROCESSED)
TOPICS = RuleSet(
    facts=(
        Fact.UPSTREAM,
        Fact.RECORDED,
        Fact.REPEATED,
        Fact.IN_ORDER,
        Fact.QUIET,
        Fact.KEPT,
    ),
    rules=(
        _rule(_V.ORDER_INVERTED, recorded=_YES, in_order=_NO, quiet=_YES),
        _rule(_V.DUPLICATE_RECORDS, upstream_status=_SENT, recorded=_YES, repeated=_YES),
        # A relay that died between acknowledgement and settlement leaves an open row.
        _rule(_V.ON_TOPIC, upstream_status=_PERHAPS_SENT, recorded=_YES),
        # A row may be published and not yet settled, or not yet visible.
        _rule(_V.IN_FLIGHT, quiet=_NO),
        _rule(_V.NOT_ON_TOPIC, upstream_status=_UNSENT, recorded=_NO),
        _rule(_V.ABSENT_FROM_TOPIC, upstream_status=_SENT, kept=_YES),
        _rule(_V.BEFORE_TOPIC, upstream_status=_SENT),
        _rule(_V.RECORD_WITHOUT_ROW, upstream_status=_NONE, kept=_YES),
        _rule(_V.TOO_OLD, upstream_status=_NONE),
        # Delivered, and the outbox says that it never was nor will be.
        _rule(_V.STATUS_DISAGREES),
    ),
)
"""On an event and its topic. The row or a record at least is there."""
