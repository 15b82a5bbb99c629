"""The hashes of a row that its database computes, so that sides are compared without a read."""

from __future__ import annotations

from typing import Final

# Each has its own seed: equal texts in two columns must not cancel each other out.
_NAMES: Final = "hashtextextended({topic}, hashtextextended({event_type}, 0))"
_DETAILS: Final = (
    "coalesce(hashtextextended({key}, 1), 1) # coalesce(hashtextextended({biz_key}, 2), 2)"
    " # hashtextextended({operation}, 3)"
)


def payload_digest(row: str, *, all_utf8: bool) -> str:
    """Return the digest of a row's payload, as an SQL expression."""
    return f"hashtextextended({_text(row, 'payload', all_utf8)}, 0)"


def envelope_digest(row: str, *, all_utf8: bool) -> str:
    """Return the digest of a row's topic, type, key, business key and operation."""
    return f"({_filled(_NAMES, row, all_utf8)} # {_details(row, all_utf8)})"


def event_digest(row: str, *, all_utf8: bool) -> str:
    """Return the digest of a row's event without its topic and type, by which rows are grouped."""
    payload = payload_digest(row, all_utf8=all_utf8)
    return f"uuid_hash_extended({row}.event_id, {payload} # {_details(row, all_utf8)})"


def _details(row: str, all_utf8: bool) -> str:  # noqa: FBT001  of this module alone
    return _filled(_DETAILS, row, all_utf8)


def _filled(expression: str, row: str, all_utf8: bool) -> str:  # noqa: FBT001  of this module alone
    columns = ("topic", "event_type", "key", "biz_key", "operation")
    return expression.format(**{name: _text(row, name, all_utf8) for name in columns})


def _text(row: str, column: str, all_utf8: bool) -> str:  # noqa: FBT001  of this module alone
    """Return a column as a text whose bytes are the same in every database.

    A hash covers the bytes of the server. If one of the databases is not in UTF-8, all convert
    texts to ASCII first, which takes longer.
    """
    plain = f"{row}.{column}"
    return plain if all_utf8 else f"encode(convert_to({plain}, 'UTF8'), 'escape')"
