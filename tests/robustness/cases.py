"""The corpus: records with one error or oddity each, described as changes to a good record.

A file of `corpus/` contains the expected outcome of its record (`expect`: parked, taken, or ignored
for want of a handler), a pattern for the reason, and the differences from the good record: headers
left out (`without`), replaced (`set`) or added (`add`), the key, the value. Bytes are text in
UTF-8, or an object: `base64`, or one of those that make something long.
"""

from __future__ import annotations

import base64
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from shieldtx.brokers import cloudevents
from shieldtx.domain.events import Envelope
from shieldtx.domain.external_ids import event_id_of
from shieldtx.ports.broker import Record
from tests.robustness.strategies import GOOD

CORPUS = Path(__file__).parent / "corpus"


class HeaderName(str):
    """A header's name; lone surrogates are sent as the bytes that are not UTF-8."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return super().encode("utf-8", "surrogateescape")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A record of the corpus, and its expected outcome."""

    name: str
    expect: str
    reason: str
    id: UUID
    """The id of its event, where the record is an event."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def cases() -> list[Case]:
    """Return every case, sorted by name."""
    return [_case(path) for path in sorted(CORPUS.glob("*.json"))]


def event_of(name: str) -> Envelope:
    """Return a good event with an id, a business key and a payload of its own."""
    return GOOD.evolve(
        id=uuid5(NAMESPACE_URL, name), biz_key=name, payload=json.dumps({"name": name})
    )


def record_of(envelope: Envelope, prefix: str) -> Record:
    """Return the record of a good event."""
    return cloudevents.encode(envelope, prefix)


_FIELDS = {"expect", "reason", "without", "set", "add", "fill", "key", "value"}


def _case(path: Path) -> Case:
    told = json.loads(path.read_text())
    assert not told.keys() - _FIELDS, path
    event = event_of(path.stem)
    good = record_of(event, "")
    changed = told.get("set", {})
    left_out = told.get("without", [])
    headers: list[tuple[str, bytes | None]] = [
        (name, _bytes(changed[name]) if name in changed else value)
        for name, value in good.headers
        if left_out != "all" and name not in left_out
    ]
    assert changed.keys() <= dict(good.headers).keys(), path
    headers += [(_name(name), _bytes(value)) for name, value in told.get("add", [])]
    if fill := told.get("fill"):
        headers += [(f"x{n}", b"x" * fill["bytes"]) for n in range(fill["count"])]
    own_id = dict(headers).get("ce_id") if told["expect"] == "taken" else None
    return Case(
        name=path.stem,
        expect=told["expect"],
        reason=told.get("reason", ""),
        id=event_id_of((dict(headers)["ce_source"] or b"").decode(), own_id.decode())
        if own_id
        else event.id,
        key=_bytes(told["key"]) if "key" in told else good.key,
        value=_bytes(told["value"]) if "value" in told else good.value,
        headers=tuple(headers),
    )


def _name(told: Any) -> str:
    return HeaderName((_bytes(told) or b"").decode("utf-8", "surrogateescape"))


def _bytes(told: Any) -> bytes | None:
    if told is None or isinstance(told, str):
        return None if told is None else told.encode()
    made: bytes
    match told:
        case {"base64": text}:
            made = base64.b64decode(text)
        case {"repeat": text, "times": times}:
            made = text.encode() * times
        case {"random": length}:
            letters = "".join(map(chr, range(33, 127)))
            made = "".join(random.Random(length).choices(letters, k=length)).encode()
        case {"digits": count, "end": text}:
            made = b"[1" + b"0" * count + text.encode() + b"]"
        case {"nest": depth}:
            made = b"[" * depth + b"]" * depth
        case {"string": length}:
            made = b'"' + b"x" * length + b'"'
        case {"lists": count}:
            made = b"[" + b",".join([b"[]"] * count) + b"]"
        case _:
            raise AssertionError(f"nobody knows what {told!r} is")
    return made
