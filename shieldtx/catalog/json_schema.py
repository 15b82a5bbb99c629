"""The schemas of the sent events as one JSON Schema document, draft 2020-12."""

from __future__ import annotations

from typing import Any, Final

from shieldtx.catalog.catalog import Catalog
from shieldtx.domain.schema_versions import dataschema_of

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(catalog: Catalog) -> dict[str, Any]:
    """Return a document with each schema under `$defs`, identified by the URI that events carry."""
    return {
        "$schema": DIALECT,
        "$id": f"urn:shieldtx:{catalog.source}",
        "title": f"Events of {catalog.source}",
        "$defs": {
            entry.event_type: {
                "$id": entry.dataschema or dataschema_of(entry.event_type, entry.version),
                **entry.schema,
            }
            for entry in catalog.sent()
        },
    }
