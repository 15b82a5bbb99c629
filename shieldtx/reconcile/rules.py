"""The definition of a mismatch: the rules that lead from facts to verdicts, as data.

PAIRS is for an event and a consumer group, TOPICS for an event and its topic. Upstream is the
service that wrote the event, downstream the service whose consumer group receives it. A ROLLBACK
event goes in the other direction: upstream is the service that gave up. Downstream is the service
that wrote the event, and each service with a group that applied the event and compensates it.

This module does not depend on Spark. `judge` evaluates a rule set for one row, and
`spark/compare/verdict_expression.py` converts the same rule set into a column expression.
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
    """A verdict, and the values of facts that lead to it; an omitted fact may have any value."""

    verdict: Verdict
    when: Mapping[Fact, frozenset[Value]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleSet:
    """Ordered rules: the first whose conditions all hold decides; the last has no conditions."""

    facts: tuple[Fact, ...]
    """The facts that must be known of a row."""
    rules: tuple[Rule, ...]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Every verdict of the rule set, in the order of first mention."""
        return tuple(dict.fromkeys(rule.verdict for rule in self.rules))

    def judge(self, facts: Mapping[Fact, Value]) -> Verdict:
        """Return the verdict on a row; KeyError if one of the rule set's facts is missing."""
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
_TO_BE_SENT = _OPEN_UPSTREAM - {OutboxStatus.HALF}
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
        # The contents of an event never change, so these rules need no watermark.
        _rule(_V.PAYLOAD_DIFFERS, same_payload=_NO),
        _rule(_V.ENVELOPE_DIFFERS, same_envelope=_NO),
        # A rollback without a cause. The read of the cause may come too late, hence `quiet`.
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
        # Applies to events of any service. No later compensation follows.
        _rule(
            _V.EFFECT_DESPITE_ROLLBACK,
            kind=_COMMIT,
            upstream_status=_SENT,
            downstream_status=_DONE,
            undone_first=_YES,
        ),
        # The cause of the rollback may have been purged.
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
        # Terminal states, which cannot change any more and need no watermark either.
        _rule(_V.MATCHED, kind=_COMMIT, upstream_status=_SENT, downstream_status=_DONE),
        _rule(
            _V.MATCHED,
            kind=_ROLLBACK,
            upstream_status=_SENT,
            downstream_status=_DONE,
            answered=_YES,
        ),
        # The group gave up, refused, or never received the event of another service.
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
            upstream_status=_SENT,
            downstream_status=(InboxStatus.DEAD,),
        ),
        # The row waits for an operator longer than the upstream keeps its own.
        _rule(
            _V.PARKED,
            upstream_status=_NONE,
            downstream_status=(InboxStatus.DEAD,),
            kept=_NO,
        ),
        _rule(
            _V.PARKED,
            upstream_status=(OutboxStatus.FAILED, OutboxStatus.UNRESOLVED),
            downstream_status=_NONE,
        ),
        _rule(
            _V.DISCARDED,
            upstream_status=_SENT,
            downstream_status=(InboxStatus.DISCARDED,),
        ),
        # Only an operator discards a rollback: rollbacks are never delayed and never half messages.
        _rule(
            _V.DISCARDED,
            kind=_ROLLBACK,
            upstream_status=(OutboxStatus.DISCARDED,),
            downstream_status=_NONE,
        ),
        _rule(_V.NEVER_SENT, upstream_status=(OutboxStatus.DISCARDED,), downstream_status=_NONE),
        # Any other observation may still change.
        _rule(_V.IN_FLIGHT, quiet=_NO),
        # One side is open. A relay that died between acknowledgement and settlement leaves an open
        # row whose event has arrived. So does a repair that publishes the event again.
        _rule(_V.STUCK, upstream_status=_TO_BE_SENT),
        _rule(_V.STUCK, upstream_status=_OPEN_UPSTREAM, downstream_status=_NONE),
        _rule(_V.STUCK, upstream_status=_SENT, downstream_status=_OPEN_DOWNSTREAM),
        _rule(_V.STUCK, upstream_status=_NONE, downstream_status=_OPEN_DOWNSTREAM, kept=_NO),
        # One side lacks a row, which has no meaning where rows of that age are purged.
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
        # The rollback is missing. The group's own database shows that, whatever the upstream has
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
        # Whether the group had to compensate is unknown if its row of the event may have been
        # purged.
        _rule(_V.TOO_OLD, kind=_ROLLBACK, upstream_status=_SENT, downstream_status=_DONE),
        # A tombstone outlives its rollback by only a moment.
        _rule(
            _V.TOO_OLD,
            kind=_COMMIT,
            upstream_status=_SENT,
            downstream_status=(InboxStatus.FENCED,),
            kept=_NO,
        ),
        # The remaining cases are two rows that cannot both be right.
        _rule(_V.STATUS_DISAGREES),
    ),
)
"""The rules for an event and a group that received it or should have. At least one side has a row.
"""

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
        # A published row may not be settled yet, or not visible yet.
        _rule(_V.IN_FLIGHT, quiet=_NO),
        _rule(_V.NOT_ON_TOPIC, upstream_status=_UNSENT, recorded=_NO),
        _rule(_V.ABSENT_FROM_TOPIC, upstream_status=_SENT, kept=_YES),
        _rule(_V.BEFORE_TOPIC, upstream_status=_SENT),
        _rule(_V.RECORD_WITHOUT_ROW, upstream_status=_NONE, kept=_YES),
        _rule(_V.TOO_OLD, upstream_status=_NONE),
        # Delivered, although by its outbox row the event was not sent and never will be.
        _rule(_V.STATUS_DISAGREES),
    ),
)
"""The rules for an event and its topic. The row or a record exists."""
