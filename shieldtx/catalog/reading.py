"""Catalogs that are read from exported documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shieldtx.catalog.asyncapi import EVENT_TYPE, GROUP, KIND, SCHEMA_VERSION
from shieldtx.catalog.catalog import Catalog, CatalogEntry, Direction
from shieldtx.catalog.json_schema import DIALECT
from shieldtx.domain.schema_versions import version_of
from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError


def read_catalog(path: Path) -> Catalog:
    """Return the catalog of a file that `shieldtx events export` has written, in either format.

    Raises ConfigurationError for a file that cannot be read, and for another document.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is not a readable JSON document ({type(error).__name__}: {error}); give a "
            "file that `shieldtx events export` has written"
        ) from error
    try:
        return _catalog(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} is not a document of `shieldtx events export` ({type(error).__name__}: "
            f"{error}); export the events again"
        ) from error


def _catalog(document: Any) -> Catalog:
    if "asyncapi" in document:
        return Catalog(source=document["info"]["title"], entries=list(_of_asyncapi(document)))
    if document.get("$schema") == DIALECT:
        source = document["$id"].rpartition(":")[2]
        return Catalog(source=source, entries=list(_of_json_schema(document)), only_sent=True)
    raise ValueError("it has neither `asyncapi` nor the `$schema` of draft 2020-12")


def _of_json_schema(document: Mapping[str, Any]) -> Iterator[CatalogEntry]:
    for event_type, found in document["$defs"].items():
        schema = dict(found)
        version = version_of(schema.pop("$id"), event_type)
        if version is None:
            raise ValueError(f"the $id of {event_type} names no version")
        yield CatalogEntry(
            event_type=event_type, direction=Direction.SEND, version=version, schema=schema
        )


def _of_asyncapi(document: Mapping[str, Any]) -> Iterator[CatalogEntry]:
    components = document["components"]
    for operation in document["operations"].values():
        channel = document["channels"][operation["channel"]["$ref"].rpartition("/")[2]]
        for reference in operation["messages"]:
            name = reference["$ref"].rpartition("/")[2]
            message = components["messages"][name]
            yield CatalogEntry(
                event_type=message[EVENT_TYPE],
                direction=Direction(operation["action"]),
                kind=TxKind(message[KIND]),
                version=message[SCHEMA_VERSION],
                group=message.get(GROUP),
                address=channel["address"],
                schema={
                    **components["schemas"][name],
                    # References of the payload are looked up in the document.
                    "components": {"schemas": components["schemas"]},
                },
            )
