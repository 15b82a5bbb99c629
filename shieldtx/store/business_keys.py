"""Events by their business keys, in tables of any size.

The indexes of business keys begin with the event type, and in the inbox with group and source. They
have few of these: a probe finds each of them, and another probe the event.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from sqlalchemy import Connection

from shieldtx.store.statements import business_keys as sql
from shieldtx.store.tables import Tables


def events_of_business_key(
    connection: Connection, t: Tables, *, biz_key: str, event_type: str | None
) -> list[UUID]:
    """Return the ids of the COMMIT events with a business key, of one type or of any, by time."""
    types = _written_types(connection, t) if event_type is None else iter([event_type])
    found: set[UUID] = set()
    for each in types:
        found.update(connection.scalars(sql.written(t, event_type=each, biz_key=biz_key)))
    found.update(received_of_business_key(connection, t, biz_key=biz_key, event_type=event_type))
    return sorted(found)


def received_of_business_key(
    connection: Connection, t: Tables, *, biz_key: str, event_type: str | None
) -> set[UUID]:
    """Return the ids of the COMMIT events with a business key that groups have received."""
    found: set[UUID] = set()
    for group, source, type_ in _received_types(connection, t):
        if event_type in {type_, None}:
            statement = sql.received(
                t, group=group, source=source, event_type=type_, biz_key=biz_key
            )
            found.update(connection.scalars(statement))
    return found


def _written_types(connection: Connection, t: Tables) -> Iterator[str]:
    # No event type has an empty name.
    after: str | None = ""
    while after is not None:
        after = connection.scalar(sql.next_written_type(t, after=after))
        if after is not None:
            yield after


def _received_types(connection: Connection, t: Tables) -> Iterator[tuple[str, str, str]]:
    place = ("", "", "")
    while True:
        group, source, event_type = place
        statement = sql.next_received_type(t, group=group, source=source, event_type=event_type)
        row = connection.execute(statement).one_or_none()
        if row is None:
            return
        place = (row.consumer_group, row.source, row.event_type)
        yield place
