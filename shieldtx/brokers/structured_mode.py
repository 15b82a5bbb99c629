"""CloudEvents in the modes that other producers use: a whole event in the value of a record.

The attributes get the names of binary mode, so that one decoder reads both modes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from shieldtx.brokers.cloudevents import (
    CONTENT_TYPE,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
)
from shieldtx.brokers.header_text import length_of, shown
from shieldtx.brokers.json_payload import json_payload
from shieldtx.errors import UndecodableRecord

STRUCTURED: Final = "application/cloudevents"

_JSON: Final = re.compile(r"(?:[a-z0-9!#$&^_.+-]+/)(?:json|[a-z0-9!#$&^_.+-]+\+json)")
_WHITESPACE: Final = " \t\n\r"
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DATA: Final = ("data", "data_base64")

# Numbers stay as they are written: an amount of money must not pass through a float.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)


def in_binary_mode(
    own: dict[str, str], value: bytes | None
) -> tuple[dict[str, str], bytes | None, bool]:
    """Return the attributes and the data of a record, and whether it is in structured mode.

    `own` has its headers of CloudEvents and its content type. Raises UndecodableRecord for an event
    format other than JSON, and for data other than JSON.
    """
    content_type = own.get("content-type", CONTENT_TYPE)
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type.startswith(f"{STRUCTURED}-batch"):
        raise UndecodableRecord(
            "content-type: batches of CloudEvents are not defined for Kafka: send one event in "
            "each record"
        )
    if media_type.startswith(STRUCTURED):
        if media_type != f"{STRUCTURED}+json":
            raise UndecodableRecord(
                f"content-type: structured mode is read as {STRUCTURED}+json only "
                f"{length_of(content_type)}"
            )
        return *_read(value), True
    if not _JSON.fullmatch(media_type):
        raise UndecodableRecord(f"content-type: is not {CONTENT_TYPE} {length_of(content_type)}")
    # CloudEvents' SDK for Python 1.x sends structured mode under the content type of the data.
    if "ce_specversion" not in own and "ce_id" not in own and value and b'"specversion"' in value:
        return *_read(value), True
    return own, value, False


def _read(value: bytes | None) -> tuple[dict[str, str], bytes | None]:
    # Checks the whole event, so that its parts can be read without errors.
    text = json_payload(value)
    if not text.lstrip(_WHITESPACE).startswith("{"):
        raise UndecodableRecord("value: is not an object, in structured mode")
    own: dict[str, str] = {}
    data: dict[str, str] = {}
    size = 0
    for name, written, member in _members(text):
        if f"ce_{name}" in own or name in data:
            raise UndecodableRecord(f"value: the attribute {shown(name)} occurs twice")
        if name in _DATA:
            data[name] = written
        elif member is not None:
            own[f"ce_{name}"] = attribute = _attribute(name, member)
            size += len(name) + len(attribute.encode())
    if len(own) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise UndecodableRecord(
            f"value: {len(own)} attributes of {size} bytes, the limits are {MAX_HEADERS} and "
            f"{MAX_HEADER_BYTES}"
        )
    return own, _data(own.pop("ce_datacontenttype", CONTENT_TYPE), data)


def _data(content_type: str, data: dict[str, str]) -> bytes | None:
    """Return the data as it is written in the event; None where there is none."""
    media_type = content_type.partition(";")[0].strip().lower()
    if data and not _JSON.fullmatch(media_type):
        raise UndecodableRecord(f"datacontenttype: is not {CONTENT_TYPE} {length_of(content_type)}")
    if len(data) > 1:
        raise UndecodableRecord("value: has both data and data_base64")
    if "data" in data:
        return data["data"].encode()
    if "data_base64" not in data:
        return None
    text = json.loads(data["data_base64"])
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise UndecodableRecord("data_base64: is not Base64") from None


def _attribute(name: str, member: Any) -> str:
    """Return the text of an attribute, whose value is a text, a number or a truth value."""
    if isinstance(member, bool):
        return "true" if member else "false"
    if not isinstance(member, str):
        raise UndecodableRecord(
            f"value: the attribute {shown(name)} is neither a text, a number nor a truth value"
        )
    return member


def _members(text: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the members of a valid JSON object: name, value as it is written, and value."""
    place = _after_space(text, _after_space(text, 0) + 1)
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, place)
        start = _after_space(text, _after_space(text, place) + 1)
        member, end = _DECODER.raw_decode(text, start)
        yield name, text[start:end], member
        place = _after_space(text, end)
        if text[place] == ",":
            place = _after_space(text, place + 1)


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return place if found is None else found.end()
