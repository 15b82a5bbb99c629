"""The events of the parked records of a service, from the headers of the records."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from uuid import UUID

from sqlalchemy import Connection

from shieldtx.store.dialects import Dialect
from shieldtx.store.statements import discards as sql
from shieldtx.store.tables import Tables


def discarded_events(
    connection: Connection,
    t: Tables,
    d: Dialect,
    *,
    group: str | None,
    events: Sequence[tuple[UUID, str]],
) -> set[tuple[UUID, str]]:
    """Return the events, by id and source, of which an operator has discarded a parked record.

    The record is of one group, or of any (None). A record without a source may belong to any event
    with its id.
    """
    ids = sorted({event_id for event_id, _ in events})
    statement = sql.discarded_records(t, d, group=group, ids=ids)
    found = set(_events_of(connection.scalars(statement)))
    return {event for event in events if event in found or (event[0], None) in found}


def _events_of(headers: Iterator[str]) -> Iterator[tuple[UUID, str | None]]:
    for text in headers:
        # If a name occurs twice, the first header with a value counts.
        pairs = reversed(json.loads(text))
        values = {name: value for name, value in pairs if value is not None}
        source = values.get("ce_source")
        event_id = UUID(base64.b64decode(values["ce_id"]).decode())
        # A foreign producer may have written any bytes.
        name = None if source is None else base64.b64decode(source).decode(errors="replace")
        yield event_id, name
