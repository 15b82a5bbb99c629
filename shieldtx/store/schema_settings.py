"""Values of settings that the migrations check too; Alembic is not imported for them."""

from __future__ import annotations

import re
from typing import Final

from shieldtx.errors import ConfigurationError

DEFAULT_SHARDS: Final = 64
MAX_SHARDS: Final = 32_768
"""The most shards that the column `shard`, a smallint, can number."""

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def schema_name(value: str | None, *, setting: str = "schema") -> str | None:
    """Return the name of a schema, None for the connection's default schema.

    Raises ConfigurationError, which names the `setting`, for a name that would need quotes.
    """
    if value is None or (_PLAIN_NAME.fullmatch(value) and not value.startswith("pg_")):
        return value
    raise ConfigurationError(
        f"{setting}: {value!r} is not a name for a schema; use lower-case letters, digits and _, "
        "63 at most, not a digit first, and not pg_ first"
    )
