"""What a mismatch is: the verdicts, and the rules that lead to them, as data.

Upstream is the service that wrote the event, downstream the one whose consumer group receives it. A
ROLLBACK event travels back, so there the service that gave up is upstream.

Nothing here knows Spark: `judge` evaluates the rules for one row, `spark/transforms.py` turns the
same rules into column expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from shieldtx.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind


class Weight(StrEnum):
    """What a verdict means for the run as a whole."""

    CLEAN = "CLEAN"
    """Both sides agree, and nothing is left to do. Only counted."""

    UNJUDGED = "UNJUDGED"
    """Too young or too old to say. Listed."""

    PARKED = "PARKED"
    """Both sides agree that a person has to decide. Listed."""

    MISMATCH = "MISMATCH"
    """Something is wrong. Listed, and the run's exit status says so."""


class Verdict(StrEnum):
    """What the reconciliation says about one event and one consumer group."""

    weight: Weight
    meaning: str
    advice: str

    def __new__(cls, name: str, weight: Weight, meaning: str, advice: str) -> Self:
        """Make a verdict that knows its weight, what it means and what to do about it."""
        verdict = str.__new__(cls, name)
        verdict._value_ = name
        verdict.weight, verdict.meaning, verdict.advice = weight, meaning, advice
        return verdict

    MATCHED = (
        "MATCHED",
        Weight.CLEAN,
        "The event was published, and its effect is committed (of a rollback: its compensation).",
        "Nothing.",
    )
    REFUSED = (
        "REFUSED",
        Weight.CLEAN,
        "The event was published; the group gave it up, or knew of its rollback already.",
        "Nothing here: the rollback is judged as an event of its own.",
    )
    NEVER_SENT = (
        "NEVER_SENT",
        Weight.CLEAN,
        "The event was discarded before it was sent, and the group has not received it.",
        "Nothing.",
    )
    PARKED = (
        "PARKED",
        Weight.PARKED,
        "Delivery or compensation failed for good, or the end of a half message is not known.",
        "Read its last error with `shieldtx dead show`, mend the cause, and replay it.",
    )
    IN_FLIGHT = (
        "IN_FLIGHT",
        Weight.UNJUDGED,
        "One side has moved, or is due to move, after the watermark.",
        "Nothing: a later run judges it.",
    )
    TOO_OLD = (
        "TOO_OLD",
        Weight.UNJUDGED,
        "A row is missing on one side, which purges rows of that age.",
        "Nothing if earlier runs were clean; reconcile more often than the shortest retention.",
    )
    STUCK = (
        "STUCK",
        Weight.MISMATCH,
        "A row is open, and since before the watermark nothing has moved it nor is due to.",
        "Look whether the upstream's relay and the group's consumer run and keep up.",
    )
    MISSING_DOWNSTREAM = (
        "MISSING_DOWNSTREAM",
        Weight.MISMATCH,
        "The broker acknowledged the event before the watermark; the group has not received it.",
        "Look at the group's lag and parked records; if the record is gone, publish it again.",
    )
    UNKNOWN_UPSTREAM = (
        "UNKNOWN_UPSTREAM",
        Weight.MISMATCH,
        "The group has received an event that is not in the outbox of the service it names.",
        "Find out who else publishes under this source, or who restored or cleaned the upstream.",
    )
    STATUS_DISAGREES = (
        "STATUS_DISAGREES",
        Weight.MISMATCH,
        "Both sides have the event, with statuses that exclude each other.",
        "Upstream not PROCESSED: it was delivered all the same, so undo one side's part of it.",
    )
    NEITHER_EFFECT_NOR_COMPENSATION = (
        "NEITHER_EFFECT_NOR_COMPENSATION",
        Weight.MISMATCH,
        "The group gave the event up, but no rollback of it is in that service's outbox.",
        "Compensate it upstream: nothing else will.",
    )
    ROLLBACK_NOT_COMPENSATED = (
        "ROLLBACK_NOT_COMPENSATED",
        Weight.MISMATCH,
        "The group has settled a rollback, but neither it nor another one compensated its event.",
        "Look whether the compensation took place, and make up for it by hand if not.",
    )

    @property
    def is_mismatch(self) -> bool:
        """Whether it makes the run end with mismatches."""
        return self.weight is Weight.MISMATCH

    @property
    def is_listed(self) -> bool:
        """Whether its rows are written out, not only counted."""
        return self.weight is not Weight.CLEAN


class Fact(StrEnum):
    """What a rule may ask about an event and a consumer group that got it or should have."""

    KIND = "kind"
    """COMMIT or ROLLBACK."""

    UPSTREAM = "upstream"
    """The status of the outbox row; None without one."""

    DOWNSTREAM = "downstream"
    """The status of the group's inbox row; None without one."""

    ANSWERED = "answered"
    """Of a COMMIT: a rollback of it is in the downstream's outbox. Of a ROLLBACK: the group has
    compensated its event, by this rollback or by another one of the same event."""

    QUIET = "quiet"
    """Neither side has moved, nor is due to, after the watermark."""

    KEPT = "kept"
    """Young enough that neither side can have purged its row."""


Value = TxKind | OutboxStatus | InboxStatus | bool | None

VOCABULARY: Mapping[Fact, tuple[Value, ...]] = MappingProxyType(
    {
        Fact.KIND: tuple(TxKind),
        Fact.UPSTREAM: (None, *OUTBOX.states),
        Fact.DOWNSTREAM: (None, *INBOX.states),
        Fact.ANSWERED: (False, True),
        Fact.QUIET: (False, True),
        Fact.KEPT: (False, True),
    }
)
"""Every value that a fact can have. One side at least has a row: not both statuses are None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A verdict, and the values of the facts that lead to it; a fact left out may be anything."""

    verdict: Verdict
    when: Mapping[Fact, frozenset[Value]]


def _rule(verdict: Verdict, **when: Iterable[Value]) -> Rule:
    conditions = {Fact(name): frozenset(values) for name, values in when.items()}
    return Rule(verdict=verdict, when=MappingProxyType(conditions))


_YES, _NO, _NONE = (True,), (False,), (None,)
_COMMIT, _ROLLBACK = (TxKind.COMMIT,), (TxKind.ROLLBACK,)
_SENT = (OutboxStatus.PROCESSED,)
_OPEN_UPSTREAM = frozenset(OUTBOX.states) - OUTBOX.settled
_DONE, _GAVE_UP = (InboxStatus.PROCESSED,), (InboxStatus.MAX_RECONSUMED,)
_OPEN_DOWNSTREAM = frozenset(INBOX.states) - INBOX.settled

_V = Verdict
RULES: tuple[Rule, ...] = (
    # Ends that nothing can change any more: they need no watermark.
    _rule(_V.MATCHED, kind=_COMMIT, upstream=_SENT, downstream=_DONE),
    _rule(_V.MATCHED, kind=_ROLLBACK, upstream=_SENT, downstream=_DONE, answered=_YES),
    _rule(_V.REFUSED, kind=_COMMIT, upstream=_SENT, downstream=_GAVE_UP, answered=_YES),
    _rule(_V.REFUSED, kind=_COMMIT, upstream=_SENT, downstream=(InboxStatus.FENCED,)),
    _rule(_V.PARKED, kind=_ROLLBACK, upstream=_SENT, downstream=(InboxStatus.DEAD,)),
    _rule(_V.PARKED, upstream=(OutboxStatus.FAILED, OutboxStatus.UNRESOLVED), downstream=_NONE),
    _rule(_V.NEVER_SENT, upstream=(OutboxStatus.DISCARDED,), downstream=_NONE),
    # Whatever else is to be seen may yet change.
    _rule(_V.IN_FLIGHT, quiet=_NO),
    # One side is open.
    _rule(_V.STUCK, upstream=_OPEN_UPSTREAM, downstream=_NONE),
    _rule(_V.STUCK, upstream=_SENT, downstream=_OPEN_DOWNSTREAM),
    # One side lacks a row. Where rows of its age are purged, that says nothing.
    _rule(_V.MISSING_DOWNSTREAM, upstream=_SENT, downstream=_NONE, kept=_YES),
    _rule(_V.TOO_OLD, upstream=_SENT, downstream=_NONE),
    _rule(_V.UNKNOWN_UPSTREAM, upstream=_NONE, kept=_YES),
    _rule(_V.TOO_OLD, upstream=_NONE),
    # Both have theirs, and the answer is missing.
    _rule(
        _V.NEITHER_EFFECT_NOR_COMPENSATION,
        kind=_COMMIT,
        upstream=_SENT,
        downstream=_GAVE_UP,
        kept=_YES,
    ),
    _rule(_V.TOO_OLD, kind=_COMMIT, upstream=_SENT, downstream=_GAVE_UP),
    _rule(_V.ROLLBACK_NOT_COMPENSATED, kind=_ROLLBACK, upstream=_SENT, downstream=_DONE, kept=_YES),
    _rule(_V.TOO_OLD, kind=_ROLLBACK, upstream=_SENT, downstream=_DONE),
    # What is left are two rows that cannot both be right.
    _rule(_V.STATUS_DISAGREES),
)
"""In order: the first rule whose conditions all hold decides, and the last one has none."""


def judge(
    *,
    kind: TxKind,
    upstream: OutboxStatus | None,
    downstream: InboxStatus | None,
    answered: bool,
    quiet: bool,
    kept: bool,
) -> Verdict:
    """Return the verdict on one event and one group; ValueError where neither side has a row."""
    if upstream is None and downstream is None:
        raise ValueError("there is nothing to judge: neither side has a row")
    facts: Mapping[Fact, Value] = {
        Fact.KIND: kind,
        Fact.UPSTREAM: upstream,
        Fact.DOWNSTREAM: downstream,
        Fact.ANSWERED: answered,
        Fact.QUIET: quiet,
        Fact.KEPT: kept,
    }
    return next(
        rule.verdict
        for rule in RULES
        if all(facts[fact] in allowed for fact, allowed in rule.when.items())
    )
