"""Handing events over: from the outbox of one service into the inbox of one group of another."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from shieldtx.domain.events import Envelope
from shieldtx.domain.log_fields import event_fields
from shieldtx.domain.states import TxKind
from shieldtx.ports.hand_over import HandedOver, Sent
from shieldtx.ports.repair import RepairAction, RowSeen
from shieldtx.store.dialects import Dialect
from shieldtx.store.halving import is_refused, refusal_of
from shieldtx.store.key_order import is_in
from shieldtx.store.repair_batch import key_of, sort
from shieldtx.store.statements import hand_over as sql
from shieldtx.store.statements import receive as receive_sql
from shieldtx.store.statements.envelope_columns import columns_of, envelope_of
from shieldtx.store.statements.hand_over import SENT
from shieldtx.store.statements.repair import events_to_hand_over
from shieldtx.store.tables import Tables

log = logging.getLogger(__name__)


class EventHandOver:
    """Reads both databases and writes into the group's database, over open connections."""

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self._tables = tables
        self._dialect = dialect
        self._receive = receive_sql.receive(tables, dialect)

    def sent(self, connection: Connection, rows: Sequence[RowSeen], *, payloads: bool) -> Sent:
        """Return the events of the outbox rows that have not changed since they were read."""
        ids = sorted({row.event_id for row in rows})
        statement = events_to_hand_over(self._tables, self._dialect, ids, payloads=payloads)
        found = {row.event_id: row for row in connection.execute(statement)}
        now = {key_of(row): found[row.event_id] for row in rows if row.event_id in found}
        batch = sort(RepairAction.HAND_OVER, rows, now)
        ready = set(batch.ids)
        return Sent(
            envelopes=[envelope_of(now) for _, now in batch.ready],
            needless=batch.needless,
            changed=batch.changed,
            on_their_way={
                event_id
                for event_id, row in found.items()
                if event_id not in ready and row.status in SENT
            },
        )

    def store(
        self,
        connection: Connection,
        group: str,
        envelopes: Sequence[Envelope],
        *,
        in_order: bool,
    ) -> HandedOver:
        """Store the events that no unique key of the inbox has; in halves if the database refuses.

        With `in_order`, no event is stored after an event of its key that is not stored.
        """
        later = set[UUID]()
        try:
            with connection.begin_nested() as attempt:
                handed = self._insert(connection, group, envelopes)
                if in_order:
                    later = _later(handed.conflicting, envelopes) & handed.done
                if not later:
                    return handed
                attempt.rollback()
        except (DBAPIError, UnicodeEncodeError) as error:
            if not is_refused(error):
                raise
            refusal = refusal_of(error)
        else:
            rest = [envelope for envelope in envelopes if envelope.id not in later]
            handed = self.store(connection, group, rest, in_order=in_order)
            return handed.plus(HandedOver(later=later))
        if len(envelopes) == 1:
            log.warning(
                "event could not be handed over",
                extra={
                    "action": "hand_over_refused",
                    "group": group,
                    **event_fields(envelopes[0]),
                    "error": refusal,
                },
            )
            return HandedOver(refused={envelopes[0].id})
        half = len(envelopes) // 2
        first = self.store(connection, group, envelopes[:half], in_order=in_order)
        later = _later(first.not_stored, envelopes) if in_order else set()
        rest = [envelope for envelope in envelopes[half:] if envelope.id not in later]
        second = self.store(connection, group, rest, in_order=in_order) if rest else HandedOver()
        later = {envelope.id for envelope in envelopes[half:]} & later
        return first.plus(second).plus(HandedOver(later=later))

    def _insert(
        self, connection: Connection, group: str, envelopes: Sequence[Envelope]
    ) -> HandedOver:
        """Store rows like received events: due, without a lease, and without a record."""
        nothing = [None] * len(envelopes)
        columns = columns_of(envelopes) | {
            "event_time": [envelope.time for envelope in envelopes],
            "record_partition": nothing,
            "record_offset": nothing,
            receive_sql.LEASE: nothing,
        }
        same = {receive_sql.GROUP: group, receive_sql.TOKEN: None}
        rows = connection.execute(self._receive, self._dialect.rows_parameters(columns, **same))
        new = {tuple(row) for row in rows.all()}
        done = {e.id for e in envelopes if (e.id, e.source) in new}
        # This statement sees the rows that the INSERT has waited for.
        old = [envelope for envelope in envelopes if envelope.id not in done]
        known = self._known(connection, group, old)
        conflicting = {e.id for e in old if e.id not in known and _happens_once(e)}
        needless = {e.id for e in old} - conflicting
        return HandedOver(done=done, needless=needless, conflicting=conflicting)

    def try_out(
        self,
        connection: Connection,
        group: str,
        envelopes: Sequence[Envelope],
        *,
        in_order: bool,
    ) -> HandedOver:
        """Return what `store` would do, as far as the unique keys determine it.

        An outbox has a unique index of business keys too. If an operator has dropped the index, two
        events may share a business key; then the first is stored.
        """
        known = self._known(connection, group, envelopes)
        by_source: dict[str, list[Envelope]] = defaultdict(list)
        for envelope in envelopes:
            if envelope.id not in known and _happens_once(envelope):
                by_source[envelope.source].append(envelope)
        conflicting = set[UUID]()
        for source, named in by_source.items():
            try:
                taken = self._taken(connection, group, source, named)
            except UnicodeEncodeError as error:
                possible = [e for e in named if is_in(error.encoding, f"{e.type}{e.biz_key}")]
                taken = self._taken(connection, group, source, possible)
            for envelope in named:
                key = envelope.type, envelope.biz_key or ""
                if key in taken:
                    conflicting.add(envelope.id)
                taken.add(key)
        done = {envelope.id for envelope in envelopes} - known - conflicting
        later = done & _later(conflicting, envelopes) if in_order else set()
        return HandedOver(done=done - later, needless=known, conflicting=conflicting, later=later)

    def _taken(
        self, connection: Connection, group: str, source: str, envelopes: Sequence[Envelope]
    ) -> set[tuple[str, str]]:
        """Return the types and business keys of which a group has received an event."""
        keys = [(e.type, e.biz_key or "") for e in envelopes]
        statement = sql.business_keys(self._tables, group=group, source=source, of=keys)
        return {(row.event_type, row.biz_key) for row in connection.execute(statement)}

    def _known(
        self, connection: Connection, group: str, envelopes: Sequence[Envelope]
    ) -> set[UUID]:
        if not envelopes:
            return set()
        ids = [envelope.id for envelope in envelopes]
        statement = receive_sql.known(self._tables, self._dialect, group, ids)
        rows = {tuple(row) for row in connection.execute(statement)}
        return {e.id for e in envelopes if (e.id, e.source) in rows}


def _later(not_stored: AbstractSet[UUID], envelopes: Sequence[Envelope]) -> set[UUID]:
    """Return the events that follow an event of their key that is not stored."""
    keys, later = set[tuple[str, str]](), set[UUID]()
    for envelope in envelopes:
        if envelope.key is None or envelope.kind is not TxKind.COMMIT:
            continue
        key = envelope.topic, envelope.key
        if envelope.id in not_stored:
            keys.add(key)
        elif key in keys:
            later.add(envelope.id)
    return later


def _happens_once(envelope: Envelope) -> bool:
    return envelope.biz_key is not None and envelope.kind is TxKind.COMMIT
