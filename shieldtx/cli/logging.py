"""The log of the commands, on standard error: plain lines, or JSON lines for collectors."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Final

from shieldtx.logs import JsonFormatter, PlainFormatter

# Minimum levels of other packages' loggers; shieldtx itself reports an outage, once.
_QUIET: Final = {
    "kafka": logging.CRITICAL,
    "apscheduler": logging.ERROR,
    "alembic": logging.WARNING,
}


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
    if not is_debug:
        handler.addFilter(_is_worth_it)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        # Not lower, even for debugging: that would be thousands of lines. Nor higher: the brokers'
        # adapter reads from the client's loggers why the client cannot connect.
        logging.getLogger(name).setLevel(logging.WARNING)


def _is_worth_it(record: logging.LogRecord) -> bool:
    return record.levelno >= _QUIET.get(record.name.partition(".")[0], logging.NOTSET)
