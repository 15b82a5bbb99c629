"""The payloads in a method's result: one, one or none, or a list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from shieldtx.domain.callables import innermost_of, name_of
from shieldtx.errors import ConfigurationError, PayloadRefused


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultShape:
    """How the results of a method become payloads, by its return annotation."""

    payload: Any = None
    """The type of one payload; None: any JSON value."""
    is_optional: bool = False
    """Whether the result None publishes no event."""
    is_list: bool = False
    """Whether the result is a list, with an event for each of its items."""
    unresolved: str = ""
    """Why the return annotation is unknown, where no payload is declared either."""
    is_undescribed: bool = False
    """Whether neither a return annotation nor a payload's type says what a result is."""

    def payloads_of(self, result: Any) -> list[Any]:
        """Return the payloads in a result, in their order; raises PayloadRefused for a misfit."""
        if self.unresolved and (result is None or isinstance(result, list)):
            what = "None" if result is None else "a list"
            raise PayloadRefused(
                "payload",
                f"the method returned {what}, and whether this is one payload is unknown: "
                f"{self.unresolved}, or to shield.declare",
            )
        if self.is_undescribed and result is None:
            # Most likely a forgotten `return`: consumers would get null instead of the data.
            raise PayloadRefused(
                "payload",
                "the method returned None, and it has no return annotation: return the payload; "
                "`-> None` stands for a payload of null, `-> P | None` for a call without an event",
            )
        if self.is_optional and result is None:
            return []
        if not self.is_list:
            return [result]
        if not isinstance(result, list):
            raise PayloadRefused(
                "payload",
                f"the method returned a {type(result).__name__}, and its return annotation is a "
                "list of payloads: return a list, which may be empty",
            )
        return result


ONE_PAYLOAD = ResultShape()
"""The result itself is the payload, whatever it is."""

_UNIONS: Final = (Union, UnionType)


def shape_of(annotation: Any) -> ResultShape:
    """Return the shape of results with a return annotation.

    `P | None` is one payload or none, `list[P]` several, and `list[P] | None` both. Anything else
    is the type of the payload, also None alone: such a method publishes a payload of null. The
    same types inside of Annotated have the same shapes. Raises ConfigurationError for a list whose
    items may be None.
    """
    inner, is_optional = _without_none(annotation)
    # The metadata of a list describes the list, and that of any other type its payload.
    of_list = unannotated(inner)
    if get_origin(of_list) is not list or not get_args(of_list):
        return ResultShape(payload=inner, is_optional=is_optional)
    (payload,) = get_args(of_list)
    if _without_none(payload)[1]:
        raise ConfigurationError(
            f"the return annotation {annotation} has None among its payloads: leave an item out of "
            "the list where there is no event"
        )
    return ResultShape(payload=payload, is_optional=is_optional, is_list=True)


def payload_type_of(function: Callable[..., Any], name: str = "return") -> Any:
    """Return an annotation of a function; None (any JSON) without an annotation.

    Other annotations may name types that exist for type checkers only. Raises ConfigurationError if
    this one cannot be resolved.
    """
    inside = innermost_of(function)
    annotations = getattr(inside, "__annotations__", {})
    if name not in annotations:
        return None
    only = SimpleNamespace(__annotations__={name: annotations[name]})
    names = getattr(inside, "__globals__", {})
    try:
        return get_type_hints(only, globalns=names, include_extras=True)[name]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        is_return = name == "return"
        which = "return annotation" if is_return else f"annotation of {name!r}"
        raise ConfigurationError(
            f"the {which} of {name_of(function)} cannot be resolved ({error}); "
            f"give the payload's type as {'payload=' if is_return else 'payload_type='}"
        ) from error


def unannotated(annotation: Any) -> Any:
    """Return the type in Annotated, and that of an alias, without metadata."""
    return _opened(annotation)[0]


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return an annotation without its `| None`, and whether it had one; metadata stay."""
    inner, metadata = _opened(annotation)
    is_optional = get_origin(inner) in _UNIONS and NoneType in get_args(inner)
    if is_optional:
        others = tuple(each for each in get_args(inner) if each is not NoneType)
        # What is left may be Annotated with another None.
        inner, _ = _without_none(Union[others])  # noqa: UP007  of a tuple
    return (Annotated[(inner, *metadata)] if metadata else inner), is_optional


def _opened(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type in an annotation, and its metadata."""
    metadata: tuple[Any, ...] = ()
    while True:
        if get_origin(annotation) is Annotated:
            metadata = (*annotation.__metadata__, *metadata)
            annotation = annotation.__origin__
        elif hasattr(annotation, "__value__"):
            # The alias of a `type` statement stands for its value.
            annotation = annotation.__value__
        else:
            return annotation, metadata
