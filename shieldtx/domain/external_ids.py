"""Ids of events of other producers: any text has a UUID for the tables, and the text is kept.

CloudEvents identifies an event by its source and its id, which is any text. The tables have UUIDs.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final
from uuid import UUID

NAMESPACE: Final = UUID("5f0c1a52-7c0e-5d3b-9a5e-8f2b6d1c4e70")
"""The namespace of the UUIDv5 of other producers' ids. It never changes: it is in the tables."""

EXTERNAL_ID: Final = "ce_id"
"""The stored header with the id as its producer wrote it, where that is not a UUID.

Applications cannot write a header of this name, nor of the following one."""

EXTERNAL_CAUSATION_ID: Final = "ce_causationid"
"""The stored header with the id of the cause as its producer wrote it, where it is not a UUID."""

_UUID_LENGTH: Final = 36


def event_id_of(source: str, text: str) -> UUID:
    """Return the UUID of an event by its source and the text of its id.

    A UUID in its usual form (RFC 9562, small letters) stays as it is. Any other text, also a UUID
    in capitals, has the UUIDv5 of its exact bytes and those of the source.
    """
    return uuid_of(text) or _hashed(source, text)


def uuid_of(text: str) -> UUID | None:
    """Return the UUID that a text is, in the form that `str` returns; None for any other text."""
    # UUID() also accepts braces, URNs and digits of other scripts. This requires 32 digits without
    # them, and fromhex() accepts only ASCII digits.
    if len(text) != _UUID_LENGTH or text[8:24:5] != "----" or text != text.lower():
        return None
    try:
        return UUID(bytes=bytes.fromhex(text.replace("-", "")))
    except ValueError:
        return None


def _hashed(source: str, text: str) -> UUID:
    """Return a UUIDv5 (RFC 9562, section 5.5): SHA-1 of the namespace and a name."""
    by = source.encode()
    # After its length, so that the end of the source cannot shift into the id.
    name = b"%d:%s%s" % (len(by), by, text.encode())
    digest = hashlib.sha1(NAMESPACE.bytes + name, usedforsecurity=False).digest()
    return UUID(bytes=digest[:16], version=5)


def digest_of(*parts: bytes | None) -> str:
    """Return a digest of a record's parts: it distinguishes the records of one offset.

    A topic that is recreated, or moved to another cluster, has other records at the same offsets.
    """
    found = hashlib.sha256()
    for part in parts:
        # After its length, so that the end of one part cannot shift into the next.
        found.update(b"-" if part is None else b"%d:%s" % (len(part), part))
    return found.hexdigest()[:16]


def foreign_text(value: bytes) -> str:
    """Return a record's key or a header's value as text, in Base64 if PostgreSQL cannot store it.

    Kafka's keys and headers are bytes, such as numbers of 8 bytes.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\x00"
    return f"base64:{base64.b64encode(value).decode()}" if "\x00" in text else text
