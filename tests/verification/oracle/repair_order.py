"""The order of keys, which a repair must keep: by numbers of the outbox, not by clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.repair.decisions import LACKS_EARLIER, OVERTAKEN
from shieldtx.reconcile.repair.tally import RepairReport
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.facts import Row, Rows
from tests.verification.oracle.history import Pair
from tests.verification.oracle.services import Effect

Key = tuple[str, str]
"""A source, and the key of an event."""


def overtaken(rows: Rows) -> set[Effect]:
    """Return the missing events of a group that has applied later events of the same key.

    Without queued events such as replayed ones: their relay sends them, with or without a repair.
    """
    received = received_by(rows)
    sent = {row["event_id"]: row for row in rows.outbox if row["key"] is not None}
    return {
        effect
        for row in rows.inbox
        if row["status"] is InboxStatus.PROCESSED and row["event_id"] in sent
        for earlier in sent.values()
        if earlier["source"] == row["source"]
        and earlier["key"] == row["key"]
        and earlier["status"] is OutboxStatus.PROCESSED
        and earlier["seq"] < sent[row["event_id"]]["seq"]
        and (effect := (row["service"], row["group"], earlier["event_id"])) not in received
    }


def inverted(before: Rows, after: Rows, applied: Sequence[Effect]) -> Iterator[str]:
    """Yield the missing events that a group got after a later event of their key.

    The group lacked the later event too, or a service wrote it during the repair.
    """
    received, known = received_by(before), {row["event_id"] for row in before.outbox}
    sent = {
        row["event_id"]: row
        for row in (*before.outbox, *(r for r in after.outbox if r["event_id"] not in known))
        if row["key"] is not None and row["status"] is OutboxStatus.PROCESSED
    }
    latest: dict[tuple[str, ...], int] = {}
    for effect in applied:
        service, group, event_id = effect
        if effect in received or event_id not in sent:
            continue
        row = sent[event_id]
        key = service, group, *key_of(row)
        if row["seq"] < latest.get(key, 0):
            yield f"{effect} was applied after a later event of its key"
        latest[key] = max(row["seq"], latest.get(key, 0))


def ahead_of(
    left_out: Iterable[Pair], before: Rows, after: Rows, applied: Sequence[Effect]
) -> Iterator[str]:
    """Yield the events that a group got although it lacks an earlier one of the key.

    Without events written meanwhile, which arrive with or without a repair.
    """
    sent = {(row["service"], row["event_id"]): row for row in after.outbox}
    received = received_by(after)
    first: dict[tuple[str, ...], int] = {}
    for pair in left_out:
        row = sent[pair.upstream, pair.event_id]
        is_lacked = (pair.downstream, pair.group, pair.event_id) not in received
        if row["key"] is not None and is_lacked and row["status"] is OutboxStatus.PROCESSED:
            key = pair.downstream, pair.group, *key_of(row)
            first[key] = min(row["seq"], first.get(key, row["seq"]))
    by_id = {row["event_id"]: row for row in before.outbox if row["kind"] is TxKind.COMMIT}
    for service, group, event_id in applied:
        later = by_id.get(event_id)
        if later is None or later["key"] is None:
            continue
        if later["seq"] > first.get((service, group, *key_of(later)), later["seq"]):
            yield f"{event_id} came to {group} before an earlier event of its key that it lacks"


def refused_in_vain(missing: Iterable[Pair], after: Rows, report: RepairReport) -> Iterator[str]:
    """Yield how many events an operator gets as overtaken by later ones that do not exist."""
    sent = {(row["service"], row["event_id"]): row for row in after.outbox}
    arrived: dict[tuple[str, ...], list[Row | None]] = defaultdict(list)
    for row in after.inbox:
        if row["key"] is not None and row["kind"] is TxKind.COMMIT:
            of = row["service"], row["group"], row["source"], row["key"]
            arrived[of].append(sent.get((row["source"], row["event_id"])))
    rightly = 0
    for pair in missing:
        event = sent.get((pair.upstream, pair.event_id))
        if event is not None and event["key"] is not None:
            others = arrived[pair.downstream, pair.group, *key_of(event)]
            # For events that the outbox has purged, the time decides.
            rightly += any(each is None or each["seq"] > event["seq"] for each in others)
    refused = report.refused.get((Verdict.MISSING_DOWNSTREAM, OVERTAKEN), 0)
    if refused > rightly:
        yield f"{refused} are left to an operator as overtaken, and {rightly} are"


def awaited_in_vain(missing: Iterable[Pair], before: Rows, report: RepairReport) -> Iterator[str]:
    """Yield how many events are left to an operator after earlier ones that no group lacks.

    An event without a key has no order, and each name of a service has its own order.
    """
    received = received_by(before)
    sent = {(row["source"], row["event_id"]): row for row in before.outbox}
    of_keys: dict[Key, list[Row]] = defaultdict(list)
    for row in before.outbox:
        if row["key"] is not None:
            of_keys[key_of(row)].append(row)
    rightly = 0
    for pair in missing:
        event = sent.get((pair.upstream, pair.event_id))
        if event is not None and event["key"] is not None:
            rightly += any(
                (pair.downstream, pair.group, other["event_id"]) not in received
                for other in of_keys[key_of(event)]
                if other is not event
            )
    refused = report.refused.get((Verdict.MISSING_DOWNSTREAM, LACKS_EARLIER), 0)
    if refused > rightly:
        yield f"{refused} are left to an operator after what a group lacks, and {rightly} are"


def keys_at_rest(rows: Rows) -> set[Key]:
    """Return the keys without an open event, in the outbox or in any inbox."""
    keyed = [row for row in (*rows.outbox, *rows.inbox) if row["key"] is not None]
    return {key_of(row) for row in keyed} - {
        key_of(row) for row in keyed if row["settled_at"] is None
    }


def key_of(row: Row) -> Key:
    """Return what orders an event that has a key."""
    return row["source"], row["key"]


def received_by(rows: Rows) -> set[Effect]:
    """Return the receipts of each group."""
    return {(row["service"], row["group"], row["event_id"]) for row in rows.inbox}
