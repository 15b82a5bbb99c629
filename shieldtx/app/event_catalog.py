"""The event catalog of an application's declarations."""

from __future__ import annotations

from collections.abc import Iterator

from shieldtx.app.declarations import Declarations
from shieldtx.catalog.catalog import Catalog, CatalogEntry, Direction, schema_of
from shieldtx.domain.events import is_foreign, physical_topic
from shieldtx.domain.schema_versions import FIRST
from shieldtx.domain.states import TxKind
from shieldtx.settings.settings import Settings

_ROLLBACK_SCHEMA = {
    "type": "object",
    "title": "Rollback",
    "properties": {"reason": {"type": "string"}},
    "required": ["reason"],
}


def event_catalog(settings: Settings, declarations: Declarations) -> Catalog:
    """Return what a service sends and receives; raises ConfigurationError."""
    declarations.check_payload_types()
    entries = [*_sent(settings, declarations), *_received(settings, declarations)]
    return Catalog(source=settings.source, entries=sorted(entries, key=_order))


def _sent(settings: Settings, declarations: Declarations) -> Iterator[CatalogEntry]:
    for declared in declarations.event_types:
        yield CatalogEntry(
            event_type=declared.name,
            direction=Direction.SEND,
            version=declared.version or FIRST,
            dataschema=declared.dataschema,
            address=physical_topic(settings.topic_prefix, declared.topic, TxKind.COMMIT),
            schema=schema_of(
                declared.payload, mode="serialization", of=f"event type {declared.name!r}"
            ),
        )
    handled = {
        (event_type, event_type if is_foreign(handler.topic) else handler.topic)
        for group in declarations.groups.values()
        for (event_type, kind), handler in group.declared()
        if kind is TxKind.COMMIT
    }
    # A group that gives up an event sends its rollback.
    for event_type, topic in handled:
        yield CatalogEntry(
            event_type=event_type,
            direction=Direction.SEND,
            kind=TxKind.ROLLBACK,
            version=FIRST,
            address=physical_topic(settings.topic_prefix, topic, TxKind.ROLLBACK),
            schema=_ROLLBACK_SCHEMA,
        )


def _received(settings: Settings, declarations: Declarations) -> Iterator[CatalogEntry]:
    for group in declarations.groups.values():
        for (event_type, kind), handler in group.declared():
            is_commit = kind is TxKind.COMMIT
            newest = declarations.event_types.upcasters.newest(event_type)
            yield CatalogEntry(
                event_type=event_type,
                direction=Direction.RECEIVE,
                kind=kind,
                version=(handler.version or newest) if is_commit else FIRST,
                group=group.name,
                group_id=declarations.group_id(group.name),
                address=physical_topic(settings.topic_prefix, handler.topic, kind),
                # The payload of a compensation comes from this service's tables, not in the record.
                schema=schema_of(
                    handler.payload,
                    mode="validation",
                    of=f"event type {event_type!r} in group {group.name!r}",
                )
                if is_commit
                else _ROLLBACK_SCHEMA,
            )


def _order(entry: CatalogEntry) -> tuple[str, ...]:
    return entry.direction, entry.event_type, entry.kind, entry.group or ""
