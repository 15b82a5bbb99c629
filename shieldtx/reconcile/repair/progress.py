"""The results of a repair so far, as far as its later steps depend on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from uuid import UUID

from shieldtx.ports.hand_over import EventPosition, Key, Sibling
from shieldtx.ports.repair import RowSeen
from shieldtx.reconcile.repair.digest_set import DigestSet


class Progress:
    """Stores events that were published again, and events that a dry run would have changed.

    Only a dry run stores raised rollbacks and replayed events here; otherwise the databases have
    them.
    """

    def __init__(self) -> None:
        self._published = DigestSet()
        self._taken_back = DigestSet()
        self._raised = DigestSet()
        self._replayed: defaultdict[str, dict[Key, list[Sibling]]] = defaultdict(dict)

    def publish(self, source: str, event_ids: Iterable[UUID]) -> None:
        """Note that events of a service are queued again."""
        for event_id in event_ids:
            self._published.add(_named(event_id, source))

    def has_published(self, source: str, event_id: UUID) -> bool:
        """Return whether an event is queued again."""
        return _named(event_id, source) in self._published

    def pretend_to_raise(self, by: str, rows: Iterable[RowSeen]) -> None:
        """Note that a service would have written the rollbacks of events."""
        for row in rows:
            self._taken_back.add(_named(row.event_id, row.source))
            self._raised.add(_named(row.event_id, row.source, by))

    def would_have_raised(self, by: str, row: RowSeen) -> bool:
        """Return whether a service would have written the rollback of an event."""
        return _named(row.event_id, row.source, by) in self._raised

    def would_be_taken_back(self, event_id: UUID, source: str) -> bool:
        """Return whether any service would have written a rollback of an event."""
        return _named(event_id, source) in self._taken_back

    def pretend_to_replay(self, source: str, positions: Mapping[UUID, EventPosition]) -> None:
        """Note that events of a service would be queued again, as far as they have an order."""
        for event_id, position in positions.items():
            if key := position.ordered_by:
                sibling = Sibling(
                    seq=position.seq,
                    written_at=position.written_at,
                    delayed_until=position.delayed_until,
                    event_id=event_id,
                    type=position.type,
                    ordered_by=key,
                    is_sent=False,
                    settled_at=None,
                    unconfirmed=position.unconfirmed,
                )
                self._replayed[source].setdefault(key, []).append(sibling)

    def would_be_replayed(self, source: str, keys: Collection[Key]) -> Iterator[Sibling]:
        """Yield the events of these keys that would be queued again."""
        replayed = self._replayed.get(source, {})
        for key in keys if replayed else ():
            yield from replayed.get(key, ())


def _named(event_id: UUID, *names: str) -> bytes:
    return event_id.bytes + "\0".join(names).encode()
