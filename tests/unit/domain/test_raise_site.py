"""The place where an error was raised, as tables and logs name it."""

from __future__ import annotations

import json
import re
import sysconfig
from pathlib import Path
from typing import Any

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


def test_an_installed_application_is_not_foreign() -> None:
    package = Path(sysconfig.get_path("purelib")) / "an_app"
    code = compile("def handle():\n    raise ValueError('no shelf')\n", package / "jobs.py", "exec")
    names: dict[str, Any] = {"__name__": "an_app.jobs"}
    exec(code, names)  # noqa: S102  code of this test, in a file that does not exist
    assert site_of(names["handle"]) == "an_app/jobs.py:2 in handle"


def test_a_folder_with_a_similar_name_is_the_applications() -> None:
    folder = f"{Path(shieldtx.__file__).parent}_app"
    code = compile("def handle():\n    raise ValueError('no shelf')\n", f"{folder}/h.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102  code of this test, in a file that does not exist
    assert site_of(names["handle"]) == "shieldtx_app/h.py:2 in handle"
