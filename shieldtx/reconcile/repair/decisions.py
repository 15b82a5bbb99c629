"""Decides which rows of a run are repaired, and how; an operator must handle the other rows.

The decision uses only the row as the run saw it. The databases check the current state when the
repair is carried out (see `repair`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.repair import RepairAction, RowSeen
from shieldtx.reconcile.expectations import NO_GROUP, ExpectedGroup, Others
from shieldtx.reconcile.repair.age import may_be_forgotten
from shieldtx.reconcile.repair.known_in_order import Inlet, KnownInOrder
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.repair.lost_rows import NONE_LOST, LostRows
from shieldtx.reconcile.repair.steps import (
    AnyStep,
    HandOverStep,
    Missing,
    Publication,
    PublishStep,
    Refusal,
    Step,
)
from shieldtx.reconcile.verdicts import Verdict

REPAIRED: Final = (
    Verdict.MISSING_DOWNSTREAM,
    Verdict.STUCK,
    Verdict.NEITHER_EFFECT_NOR_COMPENSATION,
)
"""Verdicts that are repaired without being named."""

PART_OF_RETENTION: Final = 0.9
"""The usable part of a retention: older rows may be purged before the repair has its effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The permissions and limits of a repair."""

    services: frozenset[str]
    """Services whose databases are known."""
    named: frozenset[Verdict] = frozenset()
    """Verdicts that an operator has named."""
    out_of_order: bool = False
    """An operator confirmed that groups can apply events after later ones of their keys."""
    for_others: Mapping[str, Others] = field(default_factory=dict)
    """By service: the events that unknown services receive."""
    young_since: Mapping[str, datetime] = field(default_factory=dict)
    """By service: the time before which it may have purged settled rows; no entry: no purge."""
    lost_rows: LostRows = NONE_LOST
    """Events that services may have handled although their inboxes lack the rows."""
    groups: Mapping[str, Sequence[ExpectedGroup]] = field(default_factory=dict)
    """By service: the groups that the configuration names."""
    in_order: KnownInOrder = field(default_factory=KnownInOrder)
    """Events that groups have had by the results of earlier runs."""

    def is_for_others(self, topic: str, event_type: str, *, writer: str, kind: TxKind) -> bool:
        """Return whether services outside this repair receive events of a topic or a type.

        A rollback has the topic and the type of the event that it takes back, and the receivers of
        that event compensate it. Any service may have written the rollback, so all lists count.
        """
        listed = self.for_others
        services = listed if kind is TxKind.ROLLBACK else listed.keys() & {writer}
        return any(listed[each].covers(topic, event_type) for each in services)

    @property
    def young_for_all(self) -> datetime | None:
        """Return the time since which no service can have purged rows; None: no service purges."""
        return max(self.young_since.values(), default=None)


def step_of(row: ListedRow, policy: Policy) -> AnyStep | Refusal:
    """Return the decision on one row of a run."""
    if row.verdict in NAMED and row.verdict not in policy.named:
        return Refusal(reason=NAMED[row.verdict])
    decide = _DECISIONS.get(row.verdict)
    decision = Refusal(reason=row.verdict.advice) if decide is None else decide(row, policy)
    if not isinstance(decision, Refusal):
        for unknown in sorted(_concerned(decision) - policy.services):
            return Refusal(reason=f"service {unknown!r} is not in this configuration")
    return decision


def _concerned(step: AnyStep) -> set[str]:
    """Return the services whose databases a step needs."""
    match step:
        case HandOverStep(missing=missing):
            return {missing.upstream, missing.downstream}
        case PublishStep(publication=Publication(unless_received=Missing() as missing)):
            return {missing.upstream, missing.downstream}
        case _:
            return {step.service}


TOO_OLD: Final = (
    "so old that a service may have purged what it knows of it: another copy could have a second "
    "effect; look what became of it and make up for it by hand"
)
LOST: Final = (
    "an earlier run found it in order, so a group that lacks it has lost its inbox row, and its "
    "effect may be there: another copy would have a second one. If the whole database of the "
    "group's service was restored, so that effects were lost as well, name that service with "
    "`--restored`; else put the inbox rows back, or make up for it by hand"
)
FOR_OTHERS: Final = (
    "its topic or its type is for services that take no part in this: they would get the copy "
    "too, and may have forgotten the event; reconcile them as well, or make up for it by hand"
)
TAKEN_BACK: Final = (
    "it has been taken back: compensated, or its rollback is on its way; its effect must not come "
    "after that"
)
DISCARDED: Final = (
    "an operator has discarded its record in a group that would get it (`shieldtx dead discard`): "
    "`shield_audit` of that service has who did it and why; if that was wrong, make up for it by "
    "hand"
)
OVERTAKEN: Final = (
    "the group has received later events of its key: its effect would come after theirs; make sure "
    "that the group can take that, and repair with `--out-of-order`"
)
LACKS_EARLIER: Final = (
    "the group lacks earlier events of its key too, which are not repaired with it: they could not "
    "come in their order any more; repair those first (`shieldtx reconcile --full` lists them), or "
    "make sure that the group can take that, and repair with `--out-of-order`"
)
WAITS_FOR_EARLIER: Final = (
    "the group has not received an earlier event of its key, which is queued, on its way, or left "
    "to an operator by this repair: repair the same run again when the group has received that "
    "one, or make sure that the group can take that, and repair with `--out-of-order`"
)
AMONG_OTHERS: Final = (
    "a group lacks it, and its key has other events that the group lacks too, that were sent later "
    "or that are published again: copies keep no order; hand them over first (`--verdict "
    "MISSING_DOWNSTREAM`), or make sure that the group can take that, and repair with "
    "`--out-of-order`"
)
UNDONE_LOCALLY: Final = (
    "its local rollback, if its type has one, has run: its service has undone its own part, and a "
    "group would apply it anyway; read it with `shieldtx dead show`, and where the data of "
    "its service require that it is sent, replay it with `shieldtx dead replay` and its id"
)
AFTER_LATER_ONES: Final = (
    "later events of its key were sent, or are to be sent: its effect would come after theirs; "
    "make sure that the groups can take that, and repair with `--out-of-order`"
)
BUSINESS_KEY: Final = (
    "the group has received another event with its type and business key, and takes only one; if "
    "its record came, it is parked there: see `shieldtx dead list --status PARKED` of that "
    "service, and find out why there are two"
)
NOT_STORED: Final = (
    "the database of the group refuses it: the log has the reason; the group cannot receive it "
    "before that is put right"
)
NAMED: Final[Mapping[Verdict, str]] = {
    Verdict.PARKED: (
        "it waits for an operator: repair the cause, then `--verdict PARKED` replays those of "
        "which no service has undone its part, or `shieldtx dead replay` one by one: that also "
        "replays what is older than a retention, which a group may apply twice, or was taken back"
    ),
    Verdict.ABSENT_FROM_TOPIC: (
        "groups that lack it are listed by themselves, as MISSING_DOWNSTREAM; for any other "
        "service that reads the topic, `--verdict ABSENT_FROM_TOPIC` publishes it again"
    ),
}
"""Verdicts that are repaired only by name, each with the reason why not otherwise."""
PARKED_EVENT: Final = (
    "its handler has used up its attempts, and other services may act on it: repair the cause, "
    "then replay it with `shieldtx dead replay`, or make the upstream compensate with `shieldtx "
    "dead refuse`"
)
_UNRESOLVED: Final = "the outcome of this half message is unknown: commit it or roll it back"
_NOBODY_THERE: Final = "no group receives it, so another copy would not help: start one"
_NOT_LEFT: Final = (
    "no process holds a lease on it, so there is nothing to release: see whether relay and "
    "consumers run"
)
_HALF: Final = "a half message waits for its application to commit or roll back, or for check-back"


def _missing(row: ListedRow, policy: Policy) -> AnyStep | Refusal:
    if row.group == NO_GROUP:
        return Refusal(reason=_NOBODY_THERE)
    inlet = Inlet(row.upstream, row.downstream, row.group, row.kind, row.topic, row.event_type)
    if policy.in_order.had(inlet, row.published_at):
        return Refusal(reason=LOST)
    missing = Missing(
        verdict=row.verdict,
        upstream=row.upstream,
        downstream=row.downstream,
        group=row.group,
    )
    if _is_rollback(row):
        return _publish_again(row, policy, unless_received=missing)
    # No other group gets a copy, so only this group has to recognize the event.
    if may_be_forgotten(row.published_at, since=policy.young_since.get(row.downstream)):
        return Refusal(reason=TOO_OLD)
    if reason := policy.lost_rows.why_not(row.published_at, kind=row.kind, to=row.downstream):
        return Refusal(reason=reason)
    return HandOverStep(missing=missing, row=_outbox_row(row))


def _publish_again(
    row: ListedRow, policy: Policy, *, unless_received: Missing | None = None
) -> PublishStep | Refusal:
    # All groups get the copy, and each recognizes the event only as long as it keeps its row.
    if policy.is_for_others(row.topic, row.event_type, writer=row.upstream, kind=row.kind):
        return Refusal(reason=FOR_OTHERS)
    if may_be_forgotten(row.published_at, since=policy.young_for_all):
        return Refusal(reason=TOO_OLD)
    if reason := policy.lost_rows.why_not(row.published_at, kind=row.kind):
        return Refusal(reason=reason)
    publication = Publication(
        verdict=row.verdict, upstream=row.upstream, unless_received=unless_received
    )
    return PublishStep(publication=publication, row=_outbox_row(row))


def _release(row: ListedRow, _: Policy) -> Step | Refusal:
    # An event that is sent again is covered too: each receiver recognizes its id.
    if row.upstream_status is OutboxStatus.PROCESSING:
        return _of_the_outbox(row, RepairAction.RELEASE_EVENT)
    if row.downstream_status is InboxStatus.PROCESSING:
        return _of_the_inbox(row, RepairAction.RELEASE_ATTEMPT)
    if row.downstream_status is None and row.upstream_status is OutboxStatus.HALF:
        return Refusal(reason=_HALF)
    return Refusal(reason=_NOT_LEFT)


def _raise_rollback(row: ListedRow, policy: Policy) -> Step | Refusal:
    if may_be_forgotten(row.settled_at, since=policy.young_for_all):
        return Refusal(reason=TOO_OLD)
    # A rollback of the event may have been handled before: only this service's outbox lacks it.
    if reason := policy.lost_rows.why_not(row.settled_at, kind=TxKind.ROLLBACK):
        return Refusal(reason=reason)
    return _of_the_inbox(row, RepairAction.RAISE_ROLLBACK)


def _replay(row: ListedRow, _: Policy) -> Step | Refusal:
    if row.downstream_status is InboxStatus.DEAD and not _is_rollback(row):
        return Refusal(reason=PARKED_EVENT)
    if row.downstream_status is InboxStatus.DEAD:
        return _of_the_inbox(row, RepairAction.REPLAY_COMPENSATION)
    if row.upstream_status is OutboxStatus.FAILED:
        return _of_the_outbox(row, RepairAction.REPLAY_EVENT)
    return Refusal(reason=_UNRESOLVED)


_DECISIONS: Mapping[Verdict, Callable[[ListedRow, Policy], AnyStep | Refusal]] = {
    Verdict.MISSING_DOWNSTREAM: _missing,
    Verdict.ABSENT_FROM_TOPIC: _publish_again,
    Verdict.STUCK: _release,
    Verdict.NEITHER_EFFECT_NOR_COMPENSATION: _raise_rollback,
    Verdict.PARKED: _replay,
}
"""The repairable verdicts; for every other verdict, the answer is its advice."""


def _of_the_outbox(row: ListedRow, action: RepairAction) -> Step:
    return Step(action=action, service=row.upstream, row=_outbox_row(row))


def _outbox_row(row: ListedRow) -> RowSeen:
    return RowSeen(
        event_id=row.event_id,
        source=row.upstream,
        status=row.upstream_status or "",
        settled_at=row.published_at,
        attempts=row.upstream_attempts,
    )


def _of_the_inbox(row: ListedRow, action: RepairAction) -> Step:
    seen = RowSeen(
        event_id=row.event_id,
        source=row.upstream,
        group=row.group,
        status=row.downstream_status or "",
        settled_at=row.settled_at,
        attempts=row.attempts,
    )
    return Step(action=action, service=row.downstream, row=seen)


def _is_rollback(row: ListedRow) -> bool:
    """Return whether this is a rollback, which is signed and by which its group compensates."""
    return row.kind is TxKind.ROLLBACK
