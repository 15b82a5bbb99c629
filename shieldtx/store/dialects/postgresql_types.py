"""Types of PostgreSQL that SQLAlchemy does not have, or that are slow in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any
from uuid import UUID

from sqlalchemy import Dialect, TypeDecorator
from sqlalchemy.types import ARRAY, UserDefinedType

_SEPARATOR = "\x1f"


class RowAddress(UserDefinedType[str]):
    """The physical address of a version of a row: its page, and its number there."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the name of the type."""
        return "TID"


class ArrayText(TypeDecorator[Sequence[Any]]):
    """An array whose text is built here, because the driver takes ten times as long.

    The database parses the text once, as a value of the array's type, without a cast from text.
    """

    impl = ARRAY
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        """Return the function that builds the text of a list; asyncpg encodes lists itself."""
        if dialect.driver == "asyncpg":
            return lambda values: values
        return lambda values: None if values is None else _array(values)


def _array(values: Sequence[Any]) -> str:
    """Return the text of a PostgreSQL array of one dimension.

    If no element contains the separator, all elements are quoted in one step.
    """
    types = set(map(type, values))
    if types == {UUID}:
        return "{" + ",".join([f"{value.int:032x}" for value in values]) + "}"
    if NoneType not in types:
        texts = list(map(str, values))
        joined = _SEPARATOR.join(texts)
        if joined.count(_SEPARATOR) == len(texts) - 1:
            return '{"' + _quoted(joined).replace(_SEPARATOR, '","') + '"}'
    elements = ["NULL" if value is None else f'"{_quoted(str(value))}"' for value in values]
    return "{" + ",".join(elements) + "}"


def _quoted(text_: str) -> str:
    return text_.replace("\\", "\\\\").replace('"', '\\"')
