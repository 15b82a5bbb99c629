"""What log records say: their actions, and the fields that were given with them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

_OF_EACH = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields of a record, its action among them."""
    return {name: value for name, value in vars(record).items() if name not in _OF_EACH}


def logged(records: Iterable[logging.LogRecord], action: str) -> list[dict[str, object]]:
    """The fields of all records with this action, in order, without the action itself."""
    found = [fields for fields in map(fields_of, records) if fields.get("action") == action]
    return [{k: v for k, v in each.items() if k != "action"} for each in found]
