"""The log on standard error: plain lines for a terminal, JSON lines for collectors."""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeAlias

from shieldtx.cli.errors import failure_of
from shieldtx.cli.output import printable
from shieldtx.cli.process_fields import ProcessFields
from shieldtx.domain.reasons import WITH_TRACEBACK

# Minimum levels of other packages' loggers; shieldtx itself reports an outage, once.
_QUIET: Final = {
    "kafka": logging.CRITICAL,
    "apscheduler": logging.ERROR,
    "alembic": logging.WARNING,
}
_PLAIN: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_NOT_FIELDS: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", *WITH_TRACEBACK}
)
"""Attributes of a record that were not given as fields; `taskName` is one from Python 3.12 on."""
_ONE_TOKEN: Final = re.compile(r"[^\s=\"]+")

_Fields: TypeAlias = list[tuple[str, object]]
"""Names and values; those of other libraries may be anything."""


class LogLevel(StrEnum):
    """Minimum severity of log entries."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of log lines."""

    PLAIN = "plain"
    JSON = "json"


def set_up(level: LogLevel, form: LogFormat) -> None:
    """Log to standard error; standard output is for results."""
    is_debug = level is LogLevel.DEBUG
    formatter = JsonFormatter if form is LogFormat.JSON else PlainFormatter
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(tracebacks=is_debug))
    handler.addFilter(ProcessFields())
    if not is_debug:
        handler.addFilter(_is_worth_it)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        # Not lower, even for debugging: that would be thousands of lines. Nor higher: the brokers'
        # adapter reads from the client's loggers why the client cannot connect.
        logging.getLogger(name).setLevel(logging.WARNING)


def _is_worth_it(record: logging.LogRecord) -> bool:
    return record.levelno >= _QUIET.get(record.name.partition(".")[0], logging.NOTSET)


class PlainFormatter(logging.Formatter):
    """One line per record, with `key=value` fields; a traceback only for a defect or on request."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__(_PLAIN)
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of the record."""
        record, fields = self._shortened(record)
        pairs = (f"{_key(name)}={_plain(value)}" for name, value in fields if value is not None)
        record.msg = " ".join([record.msg, *pairs])
        return super().format(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802  logging's signature
        """Return the time in UTC, by RFC 3339."""
        return _time_of(record)

    def _shortened(self, record: logging.LogRecord) -> tuple[logging.LogRecord, _Fields]:
        """Return a copy of the record, and its fields; an error that explains itself is a field.

        The text of a message may be foreign, and must not look like other records.
        """
        record = copy.copy(record)
        fields = _fields_of(record)
        record.msg, record.args = printable(record.getMessage()), ()
        failure = failure_of(record.exc_info[1]) if record.exc_info else None
        is_shown = self._tracebacks or getattr(record, "with_traceback", False)
        if failure is not None and not is_shown:
            fields = [*(each for each in fields if each[0] != "error"), ("error", failure.line)]
            record.exc_info = record.exc_text = None
        return record, fields


class JsonFormatter(PlainFormatter):
    """One JSON object per record, with fields as top-level keys after the first four."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON on one line."""
        record, fields = self._shortened(record)
        entry: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.msg,
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        entry = {**entry, **{name: value for name, value in fields if name not in entry}}
        return f"{{{', '.join(f'{_json(key)}: {_json(value)}' for key, value in entry.items())}}}"


def _fields_of(record: logging.LogRecord) -> _Fields:
    """Return what was given as `extra`: the action first, the rest in its order."""
    given = [(str(k), v) for k, v in vars(record).items() if k not in _NOT_FIELDS]
    return sorted(given, key=lambda field: field[0] != "action")


def _key(name: str) -> str:
    """Return a field's name as one token: foreign names may contain anything."""
    return re.sub(r"[^\w.-]", "_", name) or "_"


def _plain(value: object) -> str:
    """Return a value as one token: quoted as JSON where it is not one anyway."""
    if isinstance(value, (list, tuple, set, frozenset)):
        text = ",".join(map(_text, value))
    elif isinstance(value, (bool, dict)):
        text = _json(value)
    else:
        text = _text(value)
    return text if _ONE_TOKEN.fullmatch(text) and text.isprintable() else _json(text)


def _json(value: object) -> str:
    """Return a value as JSON; as a string what JSON does not have."""
    try:
        encoded = _dumps(value)
    except Exception:  # noqa: BLE001  of any library: whatever its objects raise
        encoded = _dumps(_text(value))
    # What the encoder leaves as it is could still end a line, or command a terminal.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in encoded)


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_text)


def _text(value: object) -> str:
    """Return a value's own text; the log must not fail where an object fails to make one."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  whatever its `__str__` raises
        return f"(its text cannot be made: {type(error).__name__})"


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
