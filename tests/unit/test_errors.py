"""Errors survive pickle and copies unchanged: process pools and task queues pass them on."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from shieldtx import errors
from shieldtx.errors import EventRefused, Refused, ShieldTxError

PUBLIC = [
    each
    for each in vars(errors).values()
    if inspect.isclass(each) and issubclass(each, ShieldTxError)
]
ARGUMENTS = {"str": "payload", "int": 7, "Sequence[UUID]": [UUID(int=7)]}


class OutOfStock(Refused):
    """An application's own error, with a constructor of its own."""

    def __init__(self, sku: str, *, left: int) -> None:
        super().__init__(f"{sku}: {left} left")
        self.sku, self.left = sku, left


class KeyMissing(EventRefused):
    def __init__(self) -> None:
        super().__init__("key", "is missing")


def made(kind: type[ShieldTxError]) -> ShieldTxError:
    """Create an error with the arguments of its constructor, by the types that it declares."""
    if kind.__init__ is Exception.__init__:
        return kind("a message", 7)
    parameters = list(inspect.signature(kind).parameters.values())
    return kind(*(ARGUMENTS[str(parameter.annotation)] for parameter in parameters))


MADE = [made(kind) for kind in PUBLIC] + [OutOfStock("milk", left=2), KeyMissing()]


def pickled(error: Any, protocol: int) -> Any:
    return pickle.loads(pickle.dumps(error, protocol))  # noqa: S301  its own


COPIES: dict[str, Callable[[Any], Any]] = {"copy": copy.copy, "deepcopy": copy.deepcopy} | {
    f"pickle {protocol}": partial(pickled, protocol=protocol)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_error_survives_pickle_and_copy_unchanged(
    error: ShieldTxError, copied: Callable[[Any], Any]
) -> None:
    error.add_note("a note")
    back = copied(error)
    assert back is not error
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))


def test_all_error_classes_are_tested() -> None:
    assert len(PUBLIC) > 20
    assert {"EventRefused", "TooLarge", "BacklogExceeded"} <= {kind.__name__ for kind in PUBLIC}
