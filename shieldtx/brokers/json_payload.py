"""Payloads of records: JSON that every table can store and every later writer can write."""

from __future__ import annotations

import math
from typing import Any, Final

from pydantic_core import from_json

from shieldtx.brokers.cloudevents import MAX_PAYLOAD_BYTES
from shieldtx.brokers.header_text import text_of
from shieldtx.errors import UndecodableRecord

# Maps each digit to 0: searching for zeros takes a fifth of the time of a regular expression.
_SHAPE: Final = bytes.maketrans(b"123456789E", b"000000000e")


_MANY_DIGITS: Final = b"0" * 200


def json_payload(value: bytes | None) -> str:
    """Return the JSON text of a payload; raises UndecodableRecord, which does not quote it."""
    if value is None:
        raise UndecodableRecord("value: there is none (a tombstone)")
    if len(value) > MAX_PAYLOAD_BYTES:
        raise UndecodableRecord(f"value: {len(value)} bytes, the limit is {MAX_PAYLOAD_BYTES}")
    text = text_of("value", value)
    try:
        # Also refuses JSON nested deeper than 200 levels.
        parsed = from_json(value, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise UndecodableRecord(f"value: is not JSON ({error})") from error
    if "\\u0000" in text or _may_be_infinite(value):
        _refuse_unstorable(parsed)
    return text


def _may_be_infinite(value: bytes) -> bool:
    """Whether JSON may contain a number from about 1.8e308 on, which is read as infinity.

    Such numbers have an exponent of three digits, or hundreds of digits.
    """
    shape = value.translate(_SHAPE, b"+")
    return b"0e000" in shape or _MANY_DIGITS in shape


def _refuse_unstorable(value: Any) -> None:
    """Refuse JSON values that PostgreSQL cannot store or a later writer cannot write."""
    if isinstance(value, str) and "\x00" in value:
        raise UndecodableRecord("value: holds a NUL character, which PostgreSQL cannot store")
    if isinstance(value, float) and math.isinf(value):
        raise UndecodableRecord("value: holds a number beyond the range of a double")
    if isinstance(value, dict):
        for name, member in value.items():
            _refuse_unstorable(name)
            _refuse_unstorable(member)
    elif isinstance(value, list):
        for member in value:
            _refuse_unstorable(member)
