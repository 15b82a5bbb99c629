"""Versions of payload schemas, their names on the wire, and the upcasters between them.

A version changes only with an incompatible change of a payload type. An event keeps the version
that it was written with; an upcaster changes what a handler receives, and never what is stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from shieldtx.domain.callables import check_callable, check_result, name_of
from shieldtx.domain.events import Envelope
from shieldtx.domain.payloads import decode_payload
from shieldtx.errors import ConfigurationError, PayloadRefused, UnknownSchemaVersion, UpcastFailed

FIRST: Final = 1
"""The version of events without a schema."""

LATEST: Final = 1_000_000
"""A larger number is a mistake, such as a date."""

_NAMESPACE: Final = "urn:shieldtx"

Upcaster: TypeAlias = Callable[[Any], Any]
"""Takes a payload of one version as JSON data, and returns the payload of the next version."""


def dataschema_of(event_type: str, version: int) -> str:
    """Return the URI of a version of an event type's payload, for CloudEvents' `dataschema`."""
    return f"{_NAMESPACE}:{event_type}:{version}"


@lru_cache(maxsize=4096)
def version_of(dataschema: str | None, event_type: str) -> int | None:
    """Return the version that the URI of a schema names; None for a URI of another form.

    The URI ends with the event type and the version, after `:` or `/`, as also in
    `https://schemas.example.com/orders.placed/2`. Without a schema, the version is the first.
    """
    if dataschema is None:
        return FIRST
    rest, _, number = dataschema.replace("/", ":").rpartition(":")
    if rest.rpartition(":")[2] != event_type or not number.isascii() or not number.isdigit():
        return None
    version = int(number) if len(number) <= len(str(LATEST)) else 0
    return version if FIRST <= version <= LATEST else None


def checked_version(version: int | None, *, of: str) -> int | None:
    """Return a version that can be declared; raises ConfigurationError, which names its owner."""
    if version is None or (type(version) is int and FIRST <= version <= LATEST):
        return version
    raise ConfigurationError(f"{of}: version {version!r} must be a number from {FIRST} on")


class Upcasters:
    """The upcasters of a service, by event type and the version that they read."""

    def __init__(self) -> None:
        self._functions: dict[str, dict[int, Upcaster]] = {}

    def declare(self, event_type: str, from_version: int, function: Upcaster) -> None:
        """Declare the upcaster from a version to the next; raises ConfigurationError."""
        what = f"upcaster of event type {event_type!r}"
        if checked_version(from_version, of=what) is None:
            raise ConfigurationError(f"{what}: name the version that it reads, as from_version=1")
        check_callable(function, what=what, call="upcaster(payload)")
        of_type = self._functions.setdefault(event_type, {})
        if from_version in of_type:
            raise ConfigurationError(f"{what}: version {from_version} has two upcasters; keep one")
        of_type[from_version] = function

    def types(self) -> list[str]:
        """Return the event types that have upcasters."""
        return list(self._functions)

    def newest(self, event_type: str) -> int:
        """Return the version that the last upcaster of a type makes; the first without one."""
        return max(self._of(event_type), default=FIRST - 1) + 1

    def check_chain(self, event_type: str, version: int) -> None:
        """Raise ConfigurationError if a version between the first upcaster and `version` has none.

        Versions before the first upcaster are no longer read.
        """
        declared = self._of(event_type)
        missing = [n for n in range(min(declared, default=version), version) if n not in declared]
        if missing:
            raise ConfigurationError(
                f"event type {event_type!r} is read as version {version}, and version {missing[0]} "
                f"has no upcaster: declare it with @shield.upcasts({event_type!r}, "
                f"from_version={missing[0]})"
            )

    def read(self, adapter: TypeAdapter[Any], envelope: Envelope, version: int | None) -> Any:
        """Return the payload of an event as a reader of `version` receives it.

        None reads the newest version of the type. Raises PayloadRefused for a payload that does not
        fit, UnknownSchemaVersion for a version that this release cannot read, UpcastFailed.
        """
        if envelope.dataschema is None and not self._functions and version in {None, FIRST}:
            return decode_payload(adapter, envelope.payload)
        wanted = self.newest(envelope.type) if version is None else version
        written = version_of(envelope.dataschema, envelope.type)
        if written is None and wanted == FIRST:
            # The schema of another producer, which has no versions that this release must know.
            written = FIRST
        steps = self._steps(envelope, written, wanted)
        if not steps:
            return decode_payload(adapter, envelope.payload)
        text = _upcast(envelope, steps)
        try:
            return decode_payload(adapter, text)
        except PayloadRefused as misfit:
            failed = UpcastFailed(
                f"the payload of {envelope.type!r} does not fit version {wanted} after its "
                f"upcasters from version {written}: {misfit.field}: {misfit.problem}"
            )
            failed.raised_by = misfit.raised_by
            raise failed from misfit.__cause__

    def _of(self, event_type: str) -> Mapping[int, Upcaster]:
        return self._functions.get(event_type, {})

    def _steps(
        self, envelope: Envelope, written: int | None, wanted: int
    ) -> Mapping[int, Upcaster]:
        declared = self._of(envelope.type)
        needed = range(written, wanted) if written is not None else ()
        if written is None or written > wanted or any(n not in declared for n in needed):
            raise UnknownSchemaVersion(
                _unreadable(envelope.type, envelope.dataschema, written, wanted)
            )
        return {n: declared[n] for n in needed}


def _unreadable(event_type: str, dataschema: str | None, written: int | None, wanted: int) -> str:
    if written is None:
        found = f"a schema URI of {len(dataschema or '')} characters, which names no version"
        remedy = f"Its producer must end the URI with /{event_type}/ and the version"
    elif written > wanted:
        found = f"version {written}"
        remedy = "Deploy a release that reads this version"
    else:
        found = f"version {written}" if dataschema else f"no schema, which counts as {written}"
        remedy = f"Declare upcasters from version {written} on"
    return f"the payload of {event_type!r} has {found}; this release reads {wanted}. {remedy}"


def _upcast(envelope: Envelope, steps: Mapping[int, Upcaster]) -> str:
    """Return a stored payload as JSON text of the version after the last step."""
    payload = json.loads(envelope.payload)
    for version, upcaster in steps.items():
        was_null = payload is None
        try:
            payload = upcaster(payload)
        except Exception as error:
            raise UpcastFailed(
                f"{name_of(upcaster)}, the upcaster of {envelope.type!r} from version {version}, "
                f"raised {type(error).__name__}"
            ) from error
        check_result(payload, upcaster)
        if payload is None and not was_null:
            raise UpcastFailed(
                f"{name_of(upcaster)}, the upcaster of {envelope.type!r} from version {version}, "
                "returned None: return the payload of the next version"
            )
    try:
        return json.dumps(to_jsonable_python(payload), ensure_ascii=False, allow_nan=False)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        # Their messages may contain values.
        raise UpcastFailed(
            f"the upcasters of {envelope.type!r} returned a {type(payload).__name__} that cannot "
            "be written as JSON: return dicts, lists, texts, numbers, True, False and None"
        ) from None
