"""The place where an error was raised, as tables and logs name it."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Callable
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

import shieldtx
from shieldtx.domain.callables import run
from shieldtx.domain.raise_site import raise_site_of

HERE = r"domain/test_raise_site\.py:\d+ in "


def site_of(call) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001  whatever the call raises
        return raise_site_of(error, call)
    raise AssertionError("nothing was raised")


def reserve() -> None:
    raise ValueError("no shelf")


def test_the_raising_line_is_named() -> None:
    assert re.fullmatch(HERE + "reserve", site_of(reserve))


def test_the_line_that_calls_a_library_is_named() -> None:
    def read() -> None:
        json.loads("{")

    def select() -> None:
        with create_engine("sqlite://").connect() as connection:
            connection.execute(text("SELECT * FROM nowhere"))

    assert re.fullmatch(HERE + "read", site_of(read))
    assert re.fullmatch(HERE + "select", site_of(select))


def test_frames_of_shieldtx_are_passed_over() -> None:
    assert re.fullmatch(HERE + "<lambda>", site_of(lambda: run(lambda: (item for item in ()))))


def test_an_error_without_the_applications_code_has_no_place() -> None:
    error = OperationalError("SELECT 1", {}, Exception("gone"))
    assert raise_site_of(error, reserve) == ""


def test_the_single_error_of_a_group_is_named() -> None:
    def of_tasks() -> None:
        try:
            reserve()
        except ValueError as error:
            raise ExceptionGroup("tasks", [error]) from None

    assert re.fullmatch(HERE + "reserve", site_of(of_tasks))


def installed(code: str, file: str) -> dict[str, Any]:
    """Run the code of an installed package's module; return its names."""
    compiled = compile(code, Path(sysconfig.get_path("purelib")) / file, "exec")
    names: dict[str, Any] = {"__name__": file.removesuffix(".py").replace("/", ".")}
    exec(compiled, names)  # noqa: S102  code of this test, in a file that does not exist
    return names


HANDLER = """
def handle():
    raise ValueError('no shelf')
class Handler:
    def __call__(self):
        raise ValueError('no shelf')
"""

DECORATOR = """
from functools import wraps
def again(function):
    @wraps(function)
    def wrapper():
        return function()
    return wrapper
"""


def as_it_is(handle: Callable[[], object]) -> Callable[[], object]:
    return handle


def decorated(handle: Callable[[], object]) -> Callable[[], object]:
    decorate: Callable[..., Callable[[], object]] = installed(DECORATOR, "retrying/again.py")[
        "again"
    ]
    return decorate(handle)


def decorated_partial(handle: Callable[[], object]) -> Callable[[], object]:
    return decorated(update_wrapper(partial(handle), handle))


@pytest.mark.parametrize("made", [as_it_is, decorated, partial, decorated_partial])
def test_an_installed_application_is_not_foreign(made: Callable[..., Any]) -> None:
    handle = made(installed(HANDLER, "an_app/jobs.py")["handle"])
    assert site_of(handle) == "an_app/jobs.py:3 in handle"


def test_an_installed_callable_object_is_not_foreign() -> None:
    handler = installed(HANDLER, "an_app/jobs.py")["Handler"]()
    assert site_of(handler) == "an_app/jobs.py:6 in __call__"


def test_a_folder_with_a_similar_name_is_the_applications() -> None:
    folder = f"{Path(shieldtx.__file__).parent}_app"
    code = compile("def handle():\n    raise ValueError('no shelf')\n", f"{folder}/h.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102  code of this test, in a file that does not exist
    assert site_of(names["handle"]) == "shieldtx_app/h.py:2 in handle"
