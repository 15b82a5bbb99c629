"""The rules of AsyncAPI 3.0 for the parts that shieldtx writes, as a JSON Schema of draft 7.

Fields are those of the specification's tables (Fixed Fields of each object); the specification's
own schema also allows many that shieldtx never writes, which are errors here.
"""

from __future__ import annotations

from typing import Any


def closed(required: list[str], /, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these fields, and with extensions."""
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "patternProperties": {r"^x-[\w\d\.\x2d_]+$": True},
        "additionalProperties": False,
    }


def mapping(values: Any) -> dict[str, Any]:
    """Return the schema of a component map, whose keys have few characters."""
    return {
        "type": "object",
        "propertyNames": {"pattern": r"^[\w\d\.\-_]+$"},
        "additionalProperties": values,
    }


TEXT = {"type": "string", "minLength": 1}
REFERENCE = {
    "type": "object",
    "required": ["$ref"],
    "properties": {"$ref": {"type": "string", "pattern": "^#/"}},
    "additionalProperties": False,
}
SCHEMA = {"$ref": "http://json-schema.org/draft-07/schema#"}
BINDING_VERSION = {"const": "0.5.0"}


def kafka(**fields: Any) -> dict[str, Any]:
    """Return the schema of bindings that are for Kafka alone."""
    return closed([], kafka=closed(["bindingVersion"], bindingVersion=BINDING_VERSION, **fields))


DOCUMENT = closed(
    ["asyncapi", "info", "channels", "operations", "components"],
    asyncapi={"const": "3.0.0"},
    info=closed(["title", "version"], title=TEXT, version=TEXT),
    defaultContentType=TEXT,
    channels=mapping(
        closed(
            ["address", "messages"],
            address=TEXT,
            messages=mapping(REFERENCE),
            bindings=kafka(topic=TEXT),
        )
    ),
    operations=mapping(
        closed(
            ["action", "channel", "messages"],
            action={"enum": ["send", "receive"]},
            channel=REFERENCE,
            messages={"type": "array", "minItems": 1, "items": REFERENCE, "uniqueItems": True},
            bindings=kafka(groupId=SCHEMA),
        )
    ),
    components=closed(
        ["messages", "schemas"],
        messages=mapping(
            closed(
                ["name", "headers", "payload"],
                name=TEXT,
                title=TEXT,
                contentType=TEXT,
                headers=closed(
                    ["type", "properties"],
                    type={"const": "object"},
                    required={"type": "array", "items": TEXT},
                    properties=mapping(SCHEMA),
                ),
                payload=REFERENCE,
                bindings=kafka(key=SCHEMA),
            )
        ),
        # In AsyncAPI, `discriminator` is the name of a property.
        schemas=mapping(
            {"allOf": [SCHEMA, {"properties": {"discriminator": TEXT, "$defs": False}}]}
        ),
    ),
)
