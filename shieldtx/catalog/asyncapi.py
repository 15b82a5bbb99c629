"""The catalog as an AsyncAPI 3.0 document, with Kafka bindings 0.5.0.

Payloads use AsyncAPI's own schema format, a superset of JSON Schema draft 7, which all tools read.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

from shieldtx.catalog.catalog import Catalog, CatalogEntry, Direction, Schema
from shieldtx.domain.states import Operation, TxKind

VERSION: Final = "3.0.0"
BINDING_VERSION: Final = "0.5.0"
GROUP: Final = "x-shieldtx-group"
SCHEMA_VERSION: Final = "x-shieldtx-version"
EVENT_TYPE: Final = "x-shieldtx-event-type"
KIND: Final = "x-shieldtx-kind"

_TEXT: Final = {"type": "string"}
_UUID: Final = {"type": "string", "format": "uuid"}


def asyncapi(catalog: Catalog, *, release: str) -> dict[str, Any]:
    """Return the document; `release` is the version of the service, for `info.version`."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    operation_names: dict[tuple[Direction, str | None, str], str] = {}
    messages: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for entry in catalog.entries:
        address = entry.address or entry.event_type
        name = _unique(_message_name(entry), messages)
        schemas.update(_schemas(name, entry.schema))
        messages[name] = _message(entry, name, source=catalog.source)
        channel = channels.setdefault(
            address,
            {
                "address": address,
                "messages": {},
                "bindings": {"kafka": {"topic": address, "bindingVersion": BINDING_VERSION}},
            },
        )
        channel["messages"][name] = {"$ref": f"#/components/messages/{name}"}
        reader = entry.direction, entry.group, address
        if reader not in operation_names:
            wanted = ".".join(filter(None, reader))
            operation_names[reader] = _unique(wanted, operations)
            operations[operation_names[reader]] = _operation(entry, address)
        operation = operations[operation_names[reader]]
        operation["messages"].append({"$ref": f"#/channels/{address}/messages/{name}"})
    return {
        "asyncapi": VERSION,
        "info": {"title": catalog.source, "version": release},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas},
    }


def _message_name(entry: CatalogEntry) -> str:
    kind = None if entry.kind is TxKind.COMMIT else "rollback"
    return ".".join(filter(None, (entry.direction, entry.group, entry.event_type, kind)))


def _unique(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken; dots in names make equal ones, as a.b + c and a + b.c."""
    while name in taken:
        name += "_"
    return name


def _operation(entry: CatalogEntry, address: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "action": entry.direction.value,
        "channel": {"$ref": f"#/channels/{address}"},
        "messages": [],
    }
    if entry.group_id is not None:
        group_id = {"type": "string", "const": entry.group_id}
        operation["bindings"] = {"kafka": {"groupId": group_id, "bindingVersion": BINDING_VERSION}}
    return operation


def _message(entry: CatalogEntry, name: str, *, source: str) -> dict[str, Any]:
    message = {
        "name": entry.event_type,
        "title": entry.name,
        "contentType": "application/json",
        "headers": _headers(entry, source),
        "payload": {"$ref": f"#/components/schemas/{name}"},
        "bindings": {"kafka": {"key": _TEXT, "bindingVersion": BINDING_VERSION}},
        EVENT_TYPE: entry.event_type,
        KIND: entry.kind.value,
        SCHEMA_VERSION: entry.version,
    }
    return message if entry.group is None else message | {GROUP: entry.group}


def _headers(entry: CatalogEntry, source: str) -> dict[str, Any]:
    """Return the schema of the headers: those of a record with shieldtx's codec."""
    is_sent, is_rollback = entry.direction is Direction.SEND, entry.kind is TxKind.ROLLBACK
    always = {
        "ce_specversion": {"type": "string", "const": "1.0"},
        "ce_id": _UUID,
        "ce_type": {"type": "string", "const": entry.event_type},
        "ce_source": {"type": "string", "const": source} if is_sent else _TEXT,
        "ce_time": {"type": "string", "format": "date-time"},
        "ce_txkind": {"type": "string", "const": entry.kind.value},
        "ce_operation": {"type": "string", "enum": [operation.value for operation in Operation]},
    }
    if is_rollback:
        always["ce_causationid"] = _UUID
    schema = {"type": "string", "format": "uri"}
    if is_sent and entry.dataschema is not None:
        always["ce_dataschema"] = {"type": "string", "const": entry.dataschema}
    sometimes = {
        "ce_subject": _TEXT,
        "ce_partitionkey": _TEXT,
        "ce_bizkey": _TEXT,
        "ce_causationid": _UUID,
        "ce_causationsource": _TEXT,
        "ce_traceparent": _TEXT,
        **({} if is_sent else {"ce_dataschema": schema}),
        **({"ce_signature": _TEXT} if is_rollback else {}),
    }
    return {"type": "object", "required": list(always), "properties": sometimes | always}


def _schemas(name: str, schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the schema of a payload and its definitions, as components of the document."""
    defined = {key: f"{name}.{key}" for key in schema.get("$defs", {})}
    own = {key: value for key, value in schema.items() if key != "$defs"}
    yield name, _converted(own, defined)
    for key, definition in schema.get("$defs", {}).items():
        yield defined[key], _converted(definition, defined)


def _converted(schema: Any, defined: Mapping[str, str]) -> Any:
    """Return a schema of draft 2020-12 in AsyncAPI's format, with references to components."""
    if not isinstance(schema, Mapping):
        return schema
    converted: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref":
            converted[key] = f"#/components/schemas/{defined[value.removeprefix('#/$defs/')]}"
        elif key == "prefixItems":
            # Draft 7 has a list of schemas in `items`, and the others in `additionalItems`.
            converted["items"] = [_converted(item, defined) for item in value]
        elif key == "items" and "prefixItems" in schema:
            converted["additionalItems"] = _converted(value, defined)
        elif key == "discriminator":
            # AsyncAPI's keyword takes another value; `oneOf` is complete without it.
            continue
        elif key in {"properties", "patternProperties"}:
            converted[key] = {name: _converted(part, defined) for name, part in value.items()}
        elif key in {"anyOf", "oneOf", "allOf"}:
            converted[key] = [_converted(part, defined) for part in value]
        elif key in {"items", "additionalProperties", "propertyNames", "not", "contains"}:
            converted[key] = _converted(value, defined)
        else:
            converted[key] = value
    return converted
