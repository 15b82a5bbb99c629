"""Copies of errors for logs: reduced messages, the same classes, chains of a bounded length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy.exc import StatementError

LONGEST_CHAIN = 40
"""The maximum number of copied errors of a chain: half of them the nearest, half the farthest."""


class ErrorsLeftOut(Exception):
    """Stands for the errors of a long chain that are not shown."""


def copy_of(
    chain: Sequence[BaseException],
    reduced: Callable[[str], str],
    message_of: Callable[[BaseException], str],
    is_reduced: Callable[[BaseException], bool],
) -> BaseException:
    """Return a copy of the first error of a chain, linked as the chain is."""
    kept = ends_of(chain)
    between = ErrorsLeftOut(f"... {len(chain) - len(kept):,} errors between")
    made: dict[int, BaseException] = {}
    groups = [each for each in kept if isinstance(each, BaseExceptionGroup)]
    others = [each for each in kept if not isinstance(each, BaseExceptionGroup)]
    # A group is made of its members' copies: so the members come first, and inner groups before
    # outer ones.
    for error in (*others, *reversed(groups)):
        if isinstance(error, BaseExceptionGroup):
            members = [made.get(id(each), between) for each in error.exceptions]
            made[id(error)] = _group(error, reduced(str(error.message)), members)
        else:
            made[id(error)] = _alone(error, message_of(error), keeps_fields=not is_reduced(error))
    if len(chain) > LONGEST_CHAIN:
        between.__cause__ = made[id(kept[LONGEST_CHAIN // 2])]
    for error in kept:
        _link(error, made, between)
        _copy_notes(error, made[id(error)], reduced)
    return made[id(chain[0])]


def ends_of(
    chain: Sequence[BaseException], longest: int = LONGEST_CHAIN
) -> Sequence[BaseException]:
    """Return the errors of a chain that are copied: all, or `longest` from its two ends."""
    half = longest // 2
    return chain if len(chain) <= longest else [*chain[:half], *chain[-half:]]


def _link(error: BaseException, made: dict[int, BaseException], between: BaseException) -> None:
    copy, cause, context = made[id(error)], error.__cause__, error.__context__
    copy.__traceback__ = error.__traceback__
    copy.__cause__ = None if cause is None else made.get(id(cause), between)
    copy.__context__ = None if context is None else made.get(id(context), between)
    copy.__suppress_context__ = error.__suppress_context__
    if isinstance(copy, StatementError) and isinstance(error, StatementError):
        copy.orig = None if error.orig is None else made.get(id(error.orig), between)


def _copy_notes(error: BaseException, copy: BaseException, reduced: Callable[[str], str]) -> None:
    try:
        for note in getattr(error, "__notes__", ()):
            copy.add_note(reduced(str(note)))
    except Exception:  # noqa: BLE001  a note may be any object, which may do anything
        copy.add_note("(a note cannot be read)")


def _group(
    error: BaseExceptionGroup[BaseException], text: str, members: Sequence[BaseException]
) -> BaseException:
    """Return a group with the name of the class, whose constructor may take any arguments."""
    kind = type(error)
    if kind in {ExceptionGroup, BaseExceptionGroup}:
        return BaseExceptionGroup(text, members)
    base = ExceptionGroup if isinstance(error, Exception) else BaseExceptionGroup
    made: BaseException = type(kind.__name__, (base,), _names(kind))(text, members)
    return made


def _alone(error: BaseException, text: str, *, keeps_fields: bool) -> BaseException:
    """Return an error of the same class with a reduced message, and without its chain."""
    kind = type(error)
    try:
        copy = kind.__new__(kind)
        copy.args = (text,)
        # As `_link` does later; a class may refuse these attributes.
        copy.__traceback__ = copy.__cause__ = copy.__context__ = None
        kept = {name: value for name, value in vars(error).items() if name != "__notes__"}
        if isinstance(copy, StatementError):
            vars(copy).update(kept | {"statement": None, "params": None, "detail": []})
            copy.orig = None
        elif keeps_fields:
            vars(copy).update(kept)
        shown = str(copy)
        # SQLAlchemy's classes append a link to their documentation, others perhaps values of a row.
        is_faithful = text == (shown[: len(text)] if isinstance(copy, StatementError) else shown)
    except Exception:  # noqa: BLE001  a class of the application's, which may do anything
        is_faithful = False
    if is_faithful:
        return copy
    base = Exception if isinstance(error, Exception) else BaseException
    stand_in: BaseException = type(kind.__name__, (base,), _names(kind))(text)
    return stand_in


def _names(kind: type) -> dict[str, str]:
    return {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
