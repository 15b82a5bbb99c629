"""The two formats of log records: how fields are shown, whatever they hold."""

from __future__ import annotations

import json
import logging
import re
import sys
from enum import StrEnum
from uuid import UUID

import pytest

from shieldtx.cli.logging import JsonFormatter, PlainFormatter
from shieldtx.domain.reasons import WITH_TRACEBACK
from shieldtx.errors import BrokerUnavailable


class Colour(StrEnum):
    RED = "red"


class Textless:
    """What fails to make a text of itself."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def circle() -> dict[str, object]:
    made: dict[str, object] = {}
    made["itself"] = made
    return made


NO_TEXT = "(its text cannot be made: ValueError)"


def record(message: str = "poll ended", /, **fields: object) -> logging.LogRecord:
    """A record of a library, with fields as `extra` gives them."""
    logger = logging.getLogger("another.library")
    given = (logger.name, logging.INFO, __file__, 1, message, (), None)
    return logger.makeRecord(*given, extra=fields)


def failed(error: Exception, /, **fields: object) -> logging.LogRecord:
    try:
        raise error
    except type(error):
        made = record("poll failed", **fields)
        made.exc_info = sys.exc_info()
        return made


def plain(made: logging.LogRecord) -> str:
    """The plain line, without time, level and logger."""
    line = PlainFormatter(tracebacks=False).format(made)
    return line.partition("another.library: ")[2]


def from_json(made: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter(tracebacks=False).format(made)
    assert line.isprintable(), "one line, and nothing that a terminal obeys"
    parsed: dict[str, object] = json.loads(line)
    return parsed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("stock", "stock"),
        ("müsli", "müsli"),
        ("", '""'),
        ("sold out", '"sold out"'),
        ('a"b', r'"a\"b"'),
        ("a=b", '"a=b"'),
        ("a\nb", r'"a\nb"'),
        ("a\u2028b\x85c\x1b[2J", r'"a\u2028b\u0085c\u001b[2J"'),
        ("\udcff", r'"\udcff"'),
        (r"C:\temp", r"C:\temp"),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (float("nan"), "nan"),
        (Colour.RED, "red"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\xff", r"b'\xff'"),
        ([1, "b"], "1,b"),
        (["a b"], '"a b"'),
        ({"a": {"b": [1]}}, r'"{\"a\": {\"b\": [1]}}"'),
        (Textless(), f'"{NO_TEXT}"'),
        ([Textless()], f'"{NO_TEXT}"'),
    ],
)
def test_plain_value_is_one_token(value: object, text: str):
    assert plain(record(field=value)) == f"poll ended field={text}"


def test_plain_fields_begin_with_the_action():
    made = record(group="stock", attempt=2, action="attempt_failed", reason=None)
    assert plain(made) == "poll ended action=attempt_failed group=stock attempt=2"


def test_plain_name_of_a_field_is_one_token():
    assert plain(record(**{"a b=\n": 1, "": 2})) == "poll ended a_b__=1 _=2"


def test_plain_fields_precede_the_traceback():
    lines = plain(failed(LookupError("no shelf"), job="poll")).splitlines()
    assert lines[:2] == ["poll failed job=poll", "Traceback (most recent call last):"]
    assert lines[-1] == "LookupError: no shelf"


@pytest.mark.parametrize(
    ("value", "parsed"),
    [
        ("müsli\n\u2028\x1b", "müsli\n\u2028\x1b"),
        ("\U000e0001", "\U000e0001"),
        (None, None),
        (1.5, 1.5),
        (Colour.RED, "red"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\xff", r"b'\xff'"),
        ({"a": {1: {UUID(int=1)}}}, {"a": {"1": f"{ {UUID(int=1)} }"}}),
        ({(1, 2): "key"}, "{(1, 2): 'key'}"),
        (float("inf"), "inf"),
        (Textless(), NO_TEXT),
        ({"a": Textless()}, {"a": NO_TEXT}),
        (circle(), "{'itself': {...}}"),
    ],
)
def test_json_value_is_kept_or_shown_as_text(value: object, parsed: object):
    assert from_json(record(field=value))["field"] == parsed


def test_json_fields_are_top_level_keys_after_the_own_ones():
    entry = from_json(record(group="stock", action="attempt_failed"))
    assert list(entry) == ["time", "level", "logger", "message", "action", "group"]


def test_json_fields_never_replace_the_own_keys():
    given = {"time": "never", "level": 9, "logger": "x", "traceback": "x", "error": "x"}
    entry = from_json(failed(LookupError("no shelf"), **given))
    assert re.match(r"\d{4}-\d\d-\d\dT", str(entry["time"]))
    assert (entry["level"], entry["logger"]) == ("info", "another.library")
    assert str(entry["traceback"]).endswith("LookupError: no shelf")
    assert entry["error"] == "x"


def test_an_error_that_explains_itself_is_a_field():
    made = failed(BrokerUnavailable("no\nbroker"), job="poll")
    assert plain(made) == 'poll failed job=poll error="no broker"'
    entry = from_json(made)
    assert (entry["message"], entry["error"]) == ("poll failed", "no broker")
    assert "traceback" not in entry


def test_the_error_of_the_record_replaces_a_field_of_that_name():
    assert plain(failed(BrokerUnavailable("away"), error="x", n=1)) == "poll failed n=1 error=away"


def test_wish_for_a_traceback_is_not_a_field():
    made = failed(BrokerUnavailable("away"), **WITH_TRACEBACK)
    assert plain(made).startswith("poll failed\nTraceback ")
    assert "with_traceback" not in from_json(made)


def test_formatting_leaves_the_record_as_it_was():
    made = failed(BrokerUnavailable("away"), job="poll")
    before = dict(vars(made))
    for formatter in (PlainFormatter(tracebacks=False), JsonFormatter(tracebacks=False)):
        formatter.format(made)
    assert vars(made) == before
