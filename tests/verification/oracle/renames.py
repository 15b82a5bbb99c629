"""Groups and services whose names differ between a night's configuration and their rows.

The group with the rows is expected to receive nothing more; the configured group lacks everything.
No run judges what a service wrote under its former name, and a run has to report that. What the
service has received is judged under its new name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.reconcile.findings import TOPICS
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.history import History, Pair
from tests.verification.oracle.setting import Group, Judged
from tests.verification.oracle.timeline import Life

V = Verdict
_OF_THE_OUTBOX = {V.STUCK, V.PARKED, V.NEVER_SENT}
"""Verdicts on an event from its own row, whatever group should have it."""


def expected(h: History, night: Judged) -> dict[Pair, Verdict]:
    """Return what a run of this night has to report about groups under names without rows."""
    return {
        Pair(event.kind.value, event.source, group.service, group.renamed, event.event_id): verdict
        for group in h.setting.groups
        if (group.service, group.name) in night.renamed
        for event, verdict in _lacking(h, night, group)
    }


def must_tell(h: History, night: Judged) -> bool:
    """Return whether a run has to report that it cannot judge something.

    This concerns rows that a further run would not find again, and events of a renamed service.
    """
    is_left_out = any(life.source == night.renamed_service for life in h.outboxes(night))
    is_unlisted = any(
        claim.unlisted and claim.pair[2:4] in night.renamed and claim.is_true_at(night)
        for claim in h.claims
    )
    return is_left_out or is_unlisted or _is_any_ambiguous(h, night)


def _is_any_ambiguous(h: History, night: Judged) -> bool:
    """Return whether an event was sent more than once, long after it was written.

    The configured group has no row of it, and could have purged one.
    """
    return any(
        (event.at(night.at) or {})["status"] is OutboxStatus.PROCESSED
        and _is_missed(h, night, group, event, by="settled_at")
        and not _is_missed(h, night, group, event)
        for group in h.setting.groups
        if (group.service, group.name) in night.renamed
        for event in _events_for(h, night, group)
    )


def with_names_of(h: History, night: Judged, found: Mapping[Pair, Verdict]) -> dict[Pair, Verdict]:
    """Return the verdicts under the names of a night's configuration."""
    renamed = night.renamed_service
    # A rollback of an event that was written under the former name.
    of_former = {
        life.event_id
        for life in h.lives
        if life.kind is TxKind.ROLLBACK and life.columns["causation_source"] == renamed
    }
    return {
        pair._replace(downstream=night.called(pair.downstream)): verdict
        for pair, verdict in found.items()
        if pair.upstream != renamed
        and (pair.downstream == TOPICS or pair.event_id not in of_former)
    }


def _lacking(h: History, night: Judged, group: Group) -> Iterator[tuple[Life, Verdict]]:
    said = {
        claim.pair.event_id: claim.verdict
        for claim in h.claims
        if claim.pair[2:4] == (group.service, group.name)
        and claim.verdict in _OF_THE_OUTBOX
        and claim.is_true_at(night)
    }
    for event in _events_for(h, night, group):
        if (event.at(night.at) or {})["status"] is OutboxStatus.PROCESSED:
            if _is_missed(h, night, group, event):
                yield event, V.MISSING_DOWNSTREAM
        elif event.event_id in said:
            yield event, said[event.event_id]


def _events_for(h: History, night: Judged, group: Group) -> Iterator[Life]:
    for event in h.outboxes(night):
        is_theirs = event.kind is TxKind.COMMIT and event.source == event.service
        if is_theirs and group.is_for(event.columns["event_type"]):
            yield event


def _is_missed(h: History, night: Judged, group: Group, event: Life, *, by: str = "") -> bool:
    row = event.at(night.at) or {}
    taken_back = [
        life.born_at
        for life in h.lives
        if life.group is None
        and (life.kind, life.service) == (TxKind.ROLLBACK, group.service)
        and life.columns["causation_id"] == event.event_id
        and life.at(night.at) is not None
    ]
    trace = row[by or ("created_at" if row.get("unconfirmed") else "settled_at")]
    is_kept = trace >= night.horizon(event.source, group.service)
    return is_kept and max(row["settled_at"], *taken_back, 0) < night.watermark
