"""Messages about a payload that does not fit its type: they contain only what the type declares.

pydantic's locations contain fields, and also keys of mappings, which are data. Its messages may
contain the tag of a union, or the text of an application's validator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails, PydanticSerializationError
from pydantic_core.core_schema import ErrorType

_A_KEY: Final = "[key]"
_LARGEST_INDEX: Final = 10_000
"""A larger number is hardly the index of a list, but may be a key, such as an account's number."""
_OF_TYPE: Final = "Unable to serialize unknown type: "
_OWN_PHRASES: Final = frozenset(
    {
        "assertion_error",
        "bytes_invalid_encoding",
        "datetime_object_invalid",
        "get_attribute_error",
        "iteration_error",
        "mapping_type",
        "no_such_attribute",
        "timezone_offset",
        "union_tag_invalid",
        "uuid_parsing",
        "value_error",
    }
)
"""Kinds of errors whose messages contain text of the application's code, or a part of the value."""
_KNOWN: Final = frozenset(get_args(ErrorType)) - _OWN_PHRASES


def message_of_misfit(error: ErrorDetails) -> str:
    """Return pydantic's message if it contains only declared names, else the kind of the error."""
    kind = error["type"]
    return error["msg"] if kind in _KNOWN else f"{kind}, whose text is left out"


def message_of_unwritten(error: PydanticSerializationError) -> str:
    """Return pydantic's message where it names a type; others may quote values."""
    text = str(error)
    return text if text.startswith(_OF_TYPE) else "a value cannot be written, the text is left out"


def place_of(location: Sequence[int | str], names: frozenset[str]) -> str:
    """Return a location as a path, without keys of mappings: they are not among the `names`."""
    found = ""
    for part in location:
        if isinstance(part, int) and part < _LARGEST_INDEX:
            found += f"[{part}]"
        elif part in names:
            found += f".{part}"
        else:
            found += _A_KEY
    return found.removeprefix(".")


def names_in(schema: Any) -> frozenset[str]:
    """Return every text in a core schema, which includes all names that a type declares."""
    return frozenset(_texts_in(schema))


def names_of_model(title: str) -> frozenset[str]:
    """Return the names declared by the models with a title; empty for another type's title."""
    found: frozenset[str] = frozenset()
    for model in _models(BaseModel):
        if title == (model.model_config.get("title") or model.__name__):
            found |= names_in(getattr(model, "__pydantic_core_schema__", None))
    return found


def _models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _texts_in(schema: Any) -> Iterator[str]:
    agenda, seen = [schema], set[int]()
    while agenda:
        part = agenda.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, type):
            yield part.__name__
        elif id(part) not in seen and isinstance(part, Mapping | list | tuple | set | frozenset):
            seen.add(id(part))
            agenda += [*part, *part.values()] if isinstance(part, Mapping) else part
