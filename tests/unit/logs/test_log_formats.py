"""The two formats of log records: how fields are shown, whatever they hold."""

from __future__ import annotations

import json
import logging
import logging.config
import re
import sqlite3
import sys
from enum import StrEnum
from uuid import UUID

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from shieldtx.domain.reasons import WITH_TRACEBACK
from shieldtx.errors import BrokerUnavailable
from shieldtx.logs import JsonFormatter, PlainFormatter


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


LOGGER = "shieldtx.some_module"
CARD = 4111111111111111
NO_TEXT = "(its text cannot be made: ValueError)"


def record(message: str = "poll ended", /, **fields: object) -> logging.LogRecord:
    """A record with fields as `extra` gives them."""
    logger = logging.getLogger(LOGGER)
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
    line = PlainFormatter().format(made)
    return line.partition(f"{LOGGER}: ")[2]


def from_json(made: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter().format(made)
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
        (["a b"], r'"[\"a b\"]"'),
        (["a,b", "c d"], r'"[\"a,b\", \"c d\"]"'),
        ([], '""'),
        ({"a": {"b": [1]}}, r'"{\"a\": {\"b\": [1]}}"'),
        (Textless(), f'"{NO_TEXT}"'),
        ([Textless()], rf'"[\"{NO_TEXT}\"]"'),
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
    assert (entry["level"], entry["logger"]) == ("info", LOGGER)
    assert str(entry["traceback"]).endswith("LookupError: no shelf")
    assert entry["error"] == "x"


def test_an_error_that_explains_itself_is_a_field():
    made = failed(BrokerUnavailable("no\nbroker"), job="poll")
    assert plain(made) == 'poll failed job=poll error="no broker"'
    entry = from_json(made)
    assert (entry["message"], entry["error"]) == ("poll failed", "no broker")
    assert "traceback" not in entry


def test_a_given_error_is_kept_and_the_line_becomes_the_cause():
    made = failed(BrokerUnavailable("away"), error="x", n=1)
    assert plain(made) == "poll failed error=x n=1 cause=away"


def test_a_record_with_both_fields_keeps_them_and_its_traceback():
    made = failed(BrokerUnavailable("away"), error="x", cause="y")
    assert plain(made).startswith("poll failed error=x cause=y\nTraceback ")


def refused_statement() -> DBAPIError:
    """An error that quotes the number of a card twice: as a parameter, and in the driver's text."""
    quoted = sqlite3.IntegrityError(f"UNIQUE constraint failed: card\nDETAIL: Key=({CARD})")
    return IntegrityError("INSERT INTO card VALUES (:p)", {"p": CARD}, quoted)


def of_application(error: Exception, /, **fields: object) -> logging.LogRecord:
    made = failed(error, **fields)
    made.name = "shop.orders"
    return made


def test_error_of_another_logger_has_its_traceback():
    made = of_application(refused_statement())
    for text in (PlainFormatter().format(made), str(from_json(made)["traceback"])):
        assert f'File "{__file__}", line ' in text
        assert "IntegrityError: UNIQUE constraint failed: card" in text
        assert str(CARD) not in text


@pytest.mark.parametrize("is_context", [True, False], ids=["context", "cause"])
def test_database_error_under_an_error_shows_no_row(is_context: bool):
    error = ValueError("cannot book")
    error.__context__ = refused_statement()
    if not is_context:
        error.__cause__ = refused_statement()
    made = of_application(error)
    made.exc_text = f"Traceback: {CARD}"  # by the formatter of another handler
    for formatter in (PlainFormatter(), JsonFormatter(), PlainFormatter(tracebacks=True)):
        text = formatter.format(made)
        assert str(CARD) not in text
        assert "ValueError: cannot book" in text
        assert "card" in text


@pytest.mark.parametrize(
    "args",
    [(refused_statement(),), ({"e": refused_statement()},), ([refused_statement()],)],
    ids=["list", "names", "errors"],
)
def test_database_errors_in_a_message_and_field_show_no_row(args: tuple[object, ...]):
    named = "%(e)s" if isinstance(args[0], dict) else "%s"
    made = logging.LogRecord("shop", logging.ERROR, __file__, 1, f"no: {named}", args, None)
    made.reason, made.reasons = refused_statement(), [refused_statement()]
    for formatter in (PlainFormatter(), JsonFormatter()):
        text = formatter.format(made)
        assert str(CARD) not in text
        assert "UNIQUE constraint failed: card" in text


def test_database_error_as_the_message_shows_no_row():
    made = logging.LogRecord("shop", logging.ERROR, __file__, 1, refused_statement(), (), None)
    for formatter in (PlainFormatter(), JsonFormatter()):
        text = formatter.format(made)
        assert str(CARD) not in text
        assert "UNIQUE constraint failed: card" in text


def test_text_that_cannot_be_encoded_is_a_defect():
    """Only a command can take it for an argument: a hook or a handler may encode any text."""
    made = failed(UnicodeEncodeError("latin-1", "price: \u20ac", 7, 8, "ordinal not in range"))
    text = PlainFormatter().format(made)
    assert "UnicodeEncodeError: 'latin-1' codec can't encode" in text
    assert f'File "{__file__}", line ' in text


def test_json_record_has_its_stack():
    made = record("poll ended")
    made.stack_info = "Stack (most recent call last):\n  File x"
    assert from_json(made)["stack_info"] == made.stack_info


@pytest.mark.parametrize("kind", ["class", "()"])
def test_formatters_are_usable_from_a_dictionary(kind: str, capsys: pytest.CaptureFixture[str]):
    formatters = {
        "lines": {kind: "shieldtx.logs.PlainFormatter", "format": "%(name)s: %(message)s"},
        "objects": {kind: "shieldtx.logs.JsonFormatter", "datefmt": "%Y"},
    }
    handlers = {name: {"class": "logging.StreamHandler", "formatter": name} for name in formatters}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": formatters,
            "handlers": handlers,
            "root": {"level": "INFO", "handlers": list(handlers)},
        }
    )
    logging.getLogger("shop").info("sold", extra={"count": 2})
    line, entry = capsys.readouterr().err.splitlines()
    assert line == "shop: sold count=2"
    assert json.loads(entry)["count"] == 2


def test_time_has_the_given_format():
    made = record()
    made.created = 0.0
    assert json.loads(JsonFormatter(datefmt="%H:%M").format(made))["time"] == "00:00"
    assert PlainFormatter("{asctime}", "%Y", "{").format(made) == "1970"


def test_wish_for_a_traceback_is_not_a_field():
    made = failed(BrokerUnavailable("away"), **WITH_TRACEBACK)
    assert plain(made).startswith("poll failed\nTraceback ")
    assert "with_traceback" not in from_json(made)


def test_formatting_leaves_the_record_as_it_was():
    made = failed(BrokerUnavailable("away"), job="poll")
    before = dict(vars(made))
    for formatter in (PlainFormatter(), JsonFormatter()):
        formatter.format(made)
    assert vars(made) == before
