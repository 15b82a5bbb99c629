"""The present state of the rows of a repair, compared with the state that the run saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Row

from shieldtx.domain.states import OUTBOX, InboxStatus, OutboxStatus
from shieldtx.ports.repair import RepairAction, Repaired, RowSeen
from shieldtx.store.statements.repair import InboxKey

RowNow: TypeAlias = Row[*tuple[Any, ...]]
"""The state of a row in this transaction."""


@dataclass(slots=True)
class Batch:
    """The rows of a batch by their treatment."""

    ready: list[tuple[RowSeen, RowNow]] = field(default_factory=list)
    needless: int = 0
    changed: int = 0

    @property
    def ids(self) -> list[UUID]:
        """The events that are to be repaired."""
        return [seen.event_id for seen, _ in self.ready]

    @property
    def keys(self) -> list[InboxKey]:
        """The rows that are to be repaired, by their primary keys."""
        return [key_of(seen) for seen, _ in self.ready]

    def keep(self, is_wanted: Callable[[RowSeen], bool]) -> None:
        """Keep the wanted rows; the others need no repair."""
        wanted = [(seen, now) for seen, now in self.ready if is_wanted(seen)]
        self.needless += len(self.ready) - len(wanted)
        self.ready = wanted


def sort(action: RepairAction, rows: Iterable[RowSeen], found: Mapping[InboxKey, RowNow]) -> Batch:
    """Sort rows into rows to repair, rows that no longer need the repair, and changed rows."""
    batch, known = Batch(), set[InboxKey]()
    for seen in rows:
        key = key_of(seen)
        now = found.get(key)
        if now is None:
            batch.changed += 1
        elif key in known or _has_it(action, now):
            batch.needless += 1
        elif _is_as_seen(seen, now) and _may_be_done(action, now):
            batch.ready.append((seen, now))
            known.add(key)
        else:
            batch.changed += 1
    return batch


_RELEASES = {RepairAction.RELEASE_EVENT, RepairAction.RELEASE_ATTEMPT}
_FROM: Mapping[RepairAction, str] = {
    RepairAction.HAND_OVER: OutboxStatus.PROCESSED,
    RepairAction.PUBLISH_AGAIN: OutboxStatus.PROCESSED,
    RepairAction.RELEASE_EVENT: OutboxStatus.PROCESSING,
    RepairAction.RELEASE_ATTEMPT: InboxStatus.PROCESSING,
    RepairAction.RAISE_ROLLBACK: InboxStatus.MAX_RECONSUMED,
    RepairAction.REPLAY_EVENT: OutboxStatus.FAILED,
    RepairAction.REPLAY_COMPENSATION: InboxStatus.DEAD,
}


def _may_be_done(action: RepairAction, now: RowNow) -> bool:
    return bool(now.status == _FROM[action] and (action not in _RELEASES or now.lease_ran_out))


def _has_it(action: RepairAction, now: RowNow) -> bool:
    """Whether a row already has the state after the repair."""
    match action:
        case RepairAction.HAND_OVER | RepairAction.PUBLISH_AGAIN:
            # Already queued, or being published.
            return now.status not in OUTBOX.settled
        case RepairAction.RELEASE_EVENT:
            return bool(now.status == OutboxStatus.INIT)
        case RepairAction.RELEASE_ATTEMPT:
            return bool(now.status == InboxStatus.PROCESSING and not now.leased)
        case _:
            return False


def _is_as_seen(seen: RowSeen, now: RowNow) -> bool:
    return (
        now.status == seen.status
        and now.settled_at == seen.settled_at
        and (seen.attempts is None or now.attempts == seen.attempts)
    )


def key_of(seen: RowSeen) -> InboxKey:
    """Return the primary key of an inbox row; of an outbox row, the group is empty."""
    return seen.event_id, seen.group or "", seen.source


def counted(batch: Batch) -> Repaired:
    """Return the results of a batch as numbers of rows."""
    return Repaired(
        done=len(batch.ready),
        needless=batch.needless,
        changed=batch.changed,
        events=frozenset(batch.ids),
    )
