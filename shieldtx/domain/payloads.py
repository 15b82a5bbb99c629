"""Payloads as JSON text: encoded so that they can be read again, or refused by field."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from pydantic import Secret, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from shieldtx.domain.events import storable
from shieldtx.domain.misfits import message_of_misfit, names_in, place_of
from shieldtx.errors import ConfigurationError, PayloadRefused, TooLarge

DEEPEST = 200
"""Levels of nesting; pydantic's JSON parser reads no deeper."""

LONGEST_PATH = 200
"""The maximum length of a path in an error, in characters."""

_MASK = "**********"
"""The text that pydantic writes in place of a secret."""

_TOO_DEEP = ("payload", f"is nested deeper than {DEEPEST} levels")

_Place: TypeAlias = tuple[int | str, ...]
"""The location of a part of a payload: its fields, keys and indexes."""


def payload_type(type_: Any, *, of: str) -> TypeAdapter[Any]:
    """Return the encoder and decoder of payloads of a type; None stands for any JSON value.

    Only what the type declares is written: neither fields that a subclass adds, nor excluded ones.

    Raises ConfigurationError, which names what it is the payload `of`, for types that pydantic does
    not support.
    """
    if type_ is None:
        return TypeAdapter(Any)
    if isinstance(type_, str):
        raise ConfigurationError(
            f"payload {type_!r} of {of} is a text: give the type itself, defined above"
        )
    try:
        return TypeAdapter(type_)
    except PydanticUserError as error:
        raise ConfigurationError(
            f"payload {type_!r} of {of} cannot be used: {error.message}; give a dataclass, a "
            "TypedDict or a pydantic model as payload="
        ) from error


def require_complete(adapter: TypeAdapter[Any], *, of: str) -> None:
    """Raise ConfigurationError for a payload type with a name that is not defined by now.

    Models may name each other, or ask for a late build: this is checked when a worker is built.
    """
    if adapter.pydantic_complete:
        return
    try:
        adapter.rebuild()
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ConfigurationError(
            f"the payload type of {of} is incomplete: {error.message}"
        ) from error


def encode_payload(adapter: TypeAdapter[Any], payload: Any, limit: int) -> str:
    """Return a payload as JSON text of at most `limit` bytes, which `decode_payload` reads again.

    Raises PayloadRefused or TooLarge; neither contains values of the payload.
    """
    valid = payload
    try:
        valid = adapter.validate_python(payload)
        plain = adapter.dump_python(valid, mode="json", by_alias=True, warnings="error")
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    except ValidationError as error:
        raise _misfit(adapter, error) from None
    except (PydanticSerializationError, RecursionError, ValueError, TypeError) as error:
        raise _refusal_of(adapter, valid, error) from None
    if size > limit:
        raise TooLarge("payload", f"{size} bytes as JSON, the limit is {limit}")
    _refuse_losses(adapter, valid, plain, text)
    # pydantic does not validate an instance again: its values may not fit their declared types.
    read = decode_payload(adapter, text)
    # Where both are equal, a quick comparison, no entry of a mapping has replaced another.
    if not _are_equal(read, valid):
        values = _as_python(adapter, valid)
        if any(_merges_keys(part) for part in _inside(values) if isinstance(part, dict)):
            # Raises the refusal, at the mapping.
            _refuse_parts(adapter, values, _text_problem)
    return text


def _refuse_losses(adapter: TypeAdapter[Any], valid: Any, plain: Any, text: str) -> None:
    """Refuse values that JSON replaces: they would be lost silently."""
    # The text may also be a harmless backslash before "u0000": only a walk finds out.
    if "\\u0000" in text:
        _refuse_parts(adapter, plain, _text_problem)
    # Where a type is Any, pydantic writes null for NaN and infinite numbers.
    if "null" in text:
        values = _as_python(adapter, valid)
        if any(map(_number_problem, _inside(values))):
            _refuse_parts(adapter, values, _number_problem)
    if _MASK in text:
        _refuse_parts(adapter, _as_python(adapter, valid), _secret_problem)


def decode_payload(adapter: TypeAdapter[Any], text: str) -> Any:
    """Return the payload of a stored or received event; raises PayloadRefused."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise _misfit(adapter, error) from None


def text_problem(text: Any) -> str | None:
    """Return why PostgreSQL or UTF-8 cannot store a text; None where they can."""
    if not isinstance(text, str):
        return f"must be text, not {type(text).__name__}"
    return _text_problem(text)


def _misfit(adapter: TypeAdapter[Any], error: ValidationError) -> PayloadRefused:
    first = error.errors(include_input=False, include_url=False)[0]
    if "recursion limit" in first["msg"]:
        return PayloadRefused(*_TOO_DEEP)
    refused = _refused(adapter, first["loc"], message_of_misfit(first))
    raised = first.get("ctx", {}).get("error")
    if isinstance(raised, Exception):
        refused.raised_by = raised
    return refused


def _refused(adapter: TypeAdapter[Any], place: _Place, problem: str) -> PayloadRefused:
    """Return the refusal of a part; keys that the type does not declare are data, and left out."""
    path = place_of(("payload", *place), names_in(adapter.core_schema) | {"payload"})
    return PayloadRefused(storable(path, LONGEST_PATH), problem)


def _refusal_of(adapter: TypeAdapter[Any], value: Any, error: Exception) -> PayloadRefused:
    """Return the refusal that names the part which cannot be encoded: slow, for failures only."""
    try:
        _refuse_parts(adapter, _as_python(adapter, value), _problem)
        # Here a part has another type than declared. The strict parser finds the part in its JSON.
        loose = adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
        adapter.validate_json(json.dumps(loose), strict=True)
    except PayloadRefused as found:
        return found
    except ValidationError as misfit:
        return _misfit(adapter, misfit)
    except Exception as further:  # noqa: BLE001  a serializer or a mapping of the application's
        error = further
    return PayloadRefused("payload", _unwritten(value, error))


def _as_python(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Return a value with its models and dataclasses as dicts, everything else unchanged."""
    try:
        return adapter.dump_python(value, mode="python", by_alias=True, warnings=False)
    except (PydanticSerializationError, ValueError):
        return value


def _refuse_parts(
    adapter: TypeAdapter[Any], value: Any, problem_of: Callable[[Any], str | None]
) -> None:
    for place, is_key, part in _parts(adapter, value):
        problem = problem_of(part)
        if problem is not None:
            raise _refused(adapter, place, f"a key {problem}" if is_key else problem)


def _parts(
    adapter: TypeAdapter[Any], value: Any, place: _Place = (), around: tuple[int, ...] = ()
) -> Iterator[tuple[_Place, bool, Any]]:
    """Yield every part without parts: its location, whether it is a key, and the part."""
    if id(value) in around:
        raise _refused(adapter, place, "contains itself")
    if len(around) > DEEPEST:
        raise PayloadRefused(*_TOO_DEEP)
    inside = (*around, id(value))
    if isinstance(value, Mapping):
        if _merges_keys(value):
            raise _refused(adapter, place, "has keys that are the same in JSON, as 1 and '1' are")
        for key, part in value.items():
            yield place, True, key
            # Keys of other types are not names that a type declares.
            name = key if isinstance(key, str) else ""
            yield from _parts(adapter, part, (*place, name), inside)
    elif isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (str, bytes)):
        for index, part in enumerate(value):
            yield from _parts(adapter, part, (*place, index), inside)
    else:
        yield place, False, value


def _inside(value: Any) -> Iterator[Any]:
    """Yield a value and all parts inside it, except keys: the fastest walk in Python."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple, set, frozenset, deque)):
            waiting.extend(part)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  as arrays, which are compared value by value
        return False


def _merges_keys(mapping: Mapping[Any, Any]) -> bool:
    """Whether two keys of a mapping are the same in JSON, as 1 and "1" are."""
    if {*map(type, mapping)} <= {str}:
        return False
    try:
        return len(to_jsonable_python(dict.fromkeys(mapping))) < len(mapping)
    except (PydanticSerializationError, ValueError, TypeError):
        # A key with a serializer of its own.
        return False


def _problem(part: Any) -> str | None:
    if isinstance(part, str):
        return _text_problem(part)
    if isinstance(part, float):
        return _number_problem(part)
    try:
        json.dumps(to_jsonable_python(part))
    except (PydanticSerializationError, ValueError, TypeError) as error:
        return _unwritten(part, error)
    return None


def _unwritten(part: Any, error: Exception) -> str:
    """Describe an unwritable part by its type: an error message may contain the value."""
    if isinstance(part, bytes):
        return "holds bytes that are not UTF-8 text"
    if isinstance(part, int):
        return "has more digits than Python writes"
    by = error.__cause__ or error
    return f"cannot be written as JSON: a value of type {type(part).__name__} ({type(by).__name__})"


def _text_problem(part: Any) -> str | None:
    if not isinstance(part, str):
        return None
    if "\x00" in part:
        return "holds a NUL character, which PostgreSQL cannot store"
    if not part.isascii() and any("\ud800" <= c <= "\udfff" for c in part):
        return "holds a lone surrogate, which is not UTF-8 text"
    return None


def _number_problem(part: Any) -> str | None:
    if isinstance(part, float) and not math.isfinite(part):
        return f"{part} is not a JSON number"
    return None


def _secret_problem(part: Any) -> str | None:
    if isinstance(part, (Secret, SecretStr, SecretBytes)):
        return (
            f"is a {type(part).__name__}, which is written as {_MASK}, so that its value would be "
            "lost: declare a plain type, such as str, or write it with a field_serializer"
        )
    return None
