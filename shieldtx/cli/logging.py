"""The log on standard error: plain lines for a terminal, JSON lines for collectors."""

from __future__ import annotations

import copy
import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from shieldtx.cli.errors import failure_of
from shieldtx.cli.output import printable

# Minimum levels of other packages' loggers; shieldtx itself reports an outage, once.
_QUIET: Final = {
    "kafka": logging.CRITICAL,
    "apscheduler": logging.ERROR,
    "alembic": logging.WARNING,
}
_PLAIN: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


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
    formatter = _JsonLines if form is LogFormat.JSON else _PlainLines
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(tracebacks=is_debug))
    if not is_debug:
        handler.addFilter(_is_worth_it)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        # Not lower, even for debugging: that would be thousands of lines. Nor higher: the brokers'
        # adapter reads from the client's loggers why the client cannot connect.
        logging.getLogger(name).setLevel(logging.WARNING)


def _is_worth_it(record: logging.LogRecord) -> bool:
    return record.levelno >= _QUIET.get(record.name.partition(".")[0], logging.NOTSET)


class _PlainLines(logging.Formatter):
    """One line per entry, with a traceback only for a defect or on request."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__(_PLAIN)
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of the entry."""
        return super().format(self._shortened(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802  logging's signature
        """Return the time in UTC, by RFC 3339."""
        return _time_of(record)

    def _shortened(self, record: logging.LogRecord) -> logging.LogRecord:
        """Append an error that explains itself to the message, instead of its traceback.

        The text of a message may be foreign, and must not look like other entries.
        """
        record = copy.copy(record)
        record.msg, record.args = printable(record.getMessage()), ()
        failure = failure_of(record.exc_info[1]) if record.exc_info else None
        is_told = self._tracebacks or getattr(record, "with_traceback", False)
        if failure is not None and not is_told:
            record.msg = f"{record.msg}: {failure.line}"
            record.exc_info = record.exc_text = None
        return record


class _JsonLines(_PlainLines):
    """One JSON object per entry."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the entry as JSON on one line."""
        record = self._shortened(record)
        entry = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
