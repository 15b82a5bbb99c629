"""What of a row its database hashes, so that both sides can be compared without being read."""

from __future__ import annotations

from typing import Final

# Each under a seed of its own: equal texts in two of them must not cancel each other out.
_NAMES: Final = "hashtextextended({topic}, hashtextextended({event_type}, 0))"
_DETAILS: Final = (
    "coalesce(hashtextextended({key}, 1), 1) # coalesce(hashtextextended({biz_key}, 2), 2)"
    " # hashtextextended({operation}, 3)"
)


def payload_digest(row: str, *, all_utf8: bool) -> str:
    """Return the digest of a row's payload, in PostgreSQL's words."""
    return f"hashtextextended({_text(row, 'payload', all_utf8)}, 0)"


def envelope_digest(row: str, *, all_utf8: bool) -> str:
    """Return the digest of a row's topic, type, key, business key and operation."""
    return f"({_filled(_NAMES, row, all_utf8)} # {_details(row, all_utf8)})"


def event_digest(row: str, *, all_utf8: bool) -> str:
    """Return the digest of all of a row's event but its topic and type, by which it is sorted."""
    payload = payload_digest(row, all_utf8=all_utf8)
    return f"uuid_hash_extended({row}.event_id, {payload} # {_details(row, all_utf8)})"


def _details(row: str, all_utf8: bool) -> str:  # noqa: FBT001  of this module alone
    return _filled(_DETAILS, row, all_utf8)


def _filled(expression: str, row: str, all_utf8: bool) -> str:  # noqa: FBT001  of this module alone
    columns = ("topic", "event_type", "key", "biz_key", "operation")
    return expression.format(**{name: _text(row, name, all_utf8) for name in columns})


def _text(row: str, column: str, all_utf8: bool) -> str:  # noqa: FBT001  of this module alone
    """Return a column as a text whose bytes are the same in every database.

    A hash is over the bytes that a server has: where one of the databases is not in UTF-8, all make
    ASCII of it first, which takes longer.
    """
    plain = f"{row}.{column}"
    return plain if all_utf8 else f"encode(convert_to({plain}, 'UTF8'), 'escape')"
