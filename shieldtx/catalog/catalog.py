"""The event catalog of a service: what it sends and receives, with the schemas of the payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError

Schema: TypeAlias = Mapping[str, Any]
"""A JSON Schema, draft 2020-12."""


class Direction(StrEnum):
    """What a service does with an event; the words of AsyncAPI."""

    SEND = "send"
    RECEIVE = "receive"


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogEntry:
    """An event type that a service sends, or that one of its consumer groups receives."""

    event_type: str
    direction: Direction
    version: int
    """The version of the payload's schema; 1 where none is declared."""
    schema: Schema
    kind: TxKind = TxKind.COMMIT
    dataschema: str | None = None
    """The URI of the schema that the events carry; None: they carry none."""
    address: str | None = None
    """The broker's name of the topic; None where a document does not contain it."""
    group: str | None = None
    """The consumer group of a received event."""
    group_id: str | None = None
    """The broker's name of that group."""

    @property
    def name(self) -> str:
        """The name of the entry in messages, such as `orders.placed` or `stock: orders.placed`."""
        suffix = "" if self.kind is TxKind.COMMIT else " (rollback)"
        return f"{f'{self.group}: ' if self.group else ''}{self.event_type}{suffix}"

    @property
    def identity(self) -> tuple[Direction, TxKind, str | None, str]:
        """What makes entries of two catalogs the same."""
        return self.direction, self.kind, self.group, self.event_type


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    """The event types that a service sends and receives."""

    source: str
    entries: Sequence[CatalogEntry]
    only_sent: bool = False
    """Whether received events and rollbacks are left out, as in a JSON Schema document."""

    def sent(self) -> list[CatalogEntry]:
        """Return the entries of sent COMMIT events."""
        return [
            entry
            for entry in self.entries
            if entry.direction is Direction.SEND and entry.kind is TxKind.COMMIT
        ]


def schema_of(
    payload: TypeAdapter[Any], *, mode: Literal["validation", "serialization"], of: str
) -> Schema:
    """Return the JSON Schema of a payload type: as it is written, or as it is read.

    Raises ConfigurationError, which names what it is the payload `of`, for a type without one.
    """
    try:
        return payload.json_schema(mode=mode, schema_generator=_Quiet)
    except (PydanticInvalidForJsonSchema, PydanticUserError) as error:
        raise ConfigurationError(
            f"the payload of {of} has no JSON Schema: {error.message}; annotate that part of the "
            "type with pydantic's WithJsonSchema"
        ) from error


class _Quiet(GenerateJsonSchema):
    """Leaves out defaults that JSON cannot represent, without a warning for each."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  pydantic's attribute
