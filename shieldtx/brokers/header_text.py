"""Headers and attributes of records as text; errors name the part and never quote its value."""

from __future__ import annotations

from typing import Final

from shieldtx.brokers.cloudevents import MAX_HEADER_BYTES, is_reserved
from shieldtx.domain.external_ids import foreign_text
from shieldtx.errors import UndecodableRecord

_MOST_BYTES: Final = 4
"""Maximum bytes of a character in UTF-8."""

_SHOWN_CHARACTERS: Final = 80

_NEED_A_VALUE: Final = frozenset(
    {"ce_specversion", "ce_id", "ce_type", "ce_source", "ce_txkind", "ce_operation"}
)
"""Attributes that no event lacks, or whose default would be a guess."""

Headers = tuple[tuple[str, bytes | None], ...]


def read_headers(
    headers: Headers,
    own: dict[str, str],
    users: dict[str, str],
    size: int,
    *,
    is_foreign: bool = False,
) -> int:
    """Add headers to those before them, whose size is `size` bytes; return the total size.

    `own` gets those of CloudEvents and the content type, `users` all others. An optional attribute
    without a value counts as missing: change data capture writes a column with NULL so. In a record
    that `is_foreign`, `users` leaves out headers without a value, and has values that are not text
    in Base64. Raises UndecodableRecord.
    """
    for name, value in headers:
        if value is None:
            if _may_be_empty(name, is_foreign=is_foreign):
                continue
            raise UndecodableRecord(f"header {shown(name)}: has no value")
        size += len(name) + len(value)
        if size > MAX_HEADER_BYTES:
            raise UndecodableRecord(f"headers: above the limit of {MAX_HEADER_BYTES} bytes")
        if not is_reserved(name):
            text = foreign_text(value) if is_foreign else text_of(name, value)
            check_name(name)
            users[name] = text
        elif name in own:
            raise UndecodableRecord(f"header {shown(name)}: occurs twice")
        else:
            own[name] = text_of(name, value)
    return size


def _may_be_empty(name: str, *, is_foreign: bool) -> bool:
    if not is_reserved(name):
        return is_foreign
    return name.startswith("ce_") and name not in _NEED_A_VALUE


def check_name(name: str) -> None:
    """Raise UndecodableRecord for a header's name that PostgreSQL cannot store."""
    if "\x00" in name:
        raise UndecodableRecord(f"header {shown(name)}: has a NUL character in its name")
    if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
        raise UndecodableRecord(f"header {shown(name)}: its name is not UTF-8")


def text_of(part: str, value: bytes) -> str:
    """Return the text of a part of a record; raises UndecodableRecord."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise UndecodableRecord(f"{shown(part)}: is not UTF-8 ({error.reason})") from error
    if "\x00" in text:
        raise UndecodableRecord(
            f"{shown(part)}: holds a NUL character, which PostgreSQL cannot store"
        )
    return text


def within(part: str, text: str, limit: int) -> str:
    """Return a text of up to `limit` bytes; raises UndecodableRecord."""
    if len(text) * _MOST_BYTES <= limit:
        return text
    size = len(text.encode())
    if size > limit:
        raise UndecodableRecord(f"{part}: {size} bytes, the limit is {limit}")
    return text


def length_of(text: str) -> str:
    """Return the length of a foreign value, for an error that must not quote the value."""
    return f"({len(text)} character{'' if len(text) == 1 else 's'})"


def shown(text: str) -> str:
    """Return a foreign name in a form that is safe in a log line."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")
