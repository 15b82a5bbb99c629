"""The log of the commands, on standard error: plain lines, or JSON lines for collectors."""

from __future__ import annotations

import logging
import sys
import threading
from enum import StrEnum
from types import TracebackType
from typing import Final

from shieldtx.cli.process_fields import ProcessFields
from shieldtx.domain.reasons import WITH_TRACEBACK
from shieldtx.logs import JsonFormatter, PlainFormatter

log = logging.getLogger(__name__)

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
    handler.addFilter(ProcessFields())
    if not is_debug:
        handler.addFilter(_is_worth_it)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        # Not lower, even for debugging: that would be thousands of lines. Nor higher: the brokers'
        # adapter reads from the client's loggers why the client cannot connect.
        logging.getLogger(name).setLevel(logging.WARNING)


def is_json() -> bool:
    """Whether the log is read by a program, so that standard error has records alone."""
    return any(isinstance(each.formatter, JsonFormatter) for each in logging.root.handlers)


def log_crashes() -> None:
    """Log warnings of Python, and the errors that end the process or one of its threads."""
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_crash
    threading.excepthook = _log_crash_of_thread


def _log_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical(
        "process crashed",
        exc_info=(kind, error, trace),
        extra={"action": "process_crashed", **WITH_TRACEBACK},
    )


def _log_crash_of_thread(crash: threading.ExceptHookArgs) -> None:
    # As Python's own hook does: SystemExit ends a thread in silence.
    if crash.exc_value is None or issubclass(crash.exc_type, SystemExit):
        return
    log.error(
        "thread crashed",
        exc_info=crash.exc_value,
        extra={
            "action": "thread_crashed",
            "thread_name": crash.thread.name if crash.thread else None,
            **WITH_TRACEBACK,
        },
    )


def _is_worth_it(record: logging.LogRecord) -> bool:
    return record.levelno >= _QUIET.get(record.name.partition(".")[0], logging.NOTSET)
