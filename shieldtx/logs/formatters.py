"""The two formats of log records: plain lines for people, JSON lines for collectors."""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from shieldtx.domain.reasons import WITH_TRACEBACK, loggable, message_of
from shieldtx.logs.explanations import explanation_of
from shieldtx.logs.text import printable

_PLAIN: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_OWN: Final = "shieldtx"
"""The logger of this package; an error in its records explains itself, or is a defect."""
_OF_UVICORN: Final = "color_message"
"""uvicorn's copy of its message with the colours of a terminal."""
_NOT_FIELDS: Final = frozenset(
    {
        *vars(logging.makeLogRecord({})),
        *("message", "asctime", "taskName", _OF_UVICORN),
        *WITH_TRACEBACK,
    }
)
"""Attributes of a record that were not given as fields; `taskName` is one from Python 3.12 on."""
_FOR_ERROR: Final = ("error", "cause")
"""Fields for the line of an error: the first of them that the record does not have."""
_ONE_TOKEN: Final = re.compile(r"[^\s=\"]+")
_ONE_ITEM: Final = re.compile(r"[^\s=\",]+")

_PLAIN_LISTS: Final = (list, tuple, set, frozenset)

_Fields: TypeAlias = list[tuple[str, object]]
"""Names and values; those of other libraries may be anything."""
_Style: TypeAlias = Literal["%", "{", "$"]


class PlainFormatter(logging.Formatter):
    """One line per record: the message and its fields as `key=value`, with a traceback after it.

    All arguments are optional, and all but `tracebacks` are those of `logging.Formatter`. A record
    of shieldtx whose error explains itself has the field `error` in place of the traceback, unless
    `tracebacks` is true. Database errors are shown without parameters and values of rows.
    """

    def __init__(
        self,
        fmt: str | None = None,
        datefmt: str | None = None,
        style: _Style = "%",
        validate: bool = True,  # noqa: FBT001, FBT002  logging's signature
        *,
        defaults: Mapping[str, Any] | None = None,
        tracebacks: bool = False,
    ) -> None:
        if fmt is None:
            fmt, style = _PLAIN, "%"
        super().__init__(fmt, datefmt, style, validate, defaults=defaults)
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of the record."""
        record, fields = self._shortened(record)
        pairs = (f"{_key(name)}={_plain(value)}" for name, value in fields if value is not None)
        record.msg = " ".join([record.msg, *pairs])
        return super().format(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  logging's name
        """Return the time in UTC, by RFC 3339 unless `datefmt` is another format."""
        time = datetime.fromtimestamp(record.created, UTC)
        return time.strftime(datefmt) if datefmt else time.isoformat(timespec="milliseconds")

    def _shortened(self, record: logging.LogRecord) -> tuple[logging.LogRecord, _Fields]:
        """Return a copy of the record, and its fields; an error that explains itself is a field.

        The text of a message may be foreign, and must not look like other records.
        """
        record = copy.copy(record)
        fields = _fields_of(record)
        # The message itself may be an error, as in `log.error(error)`.
        record.msg, record.args = _loggable(record.msg), _without_rows(record.args)
        record.msg, record.args = printable(record.getMessage()), ()
        # Another handler's formatter may have stored the traceback, with all that errors quote.
        record.exc_text = None
        if not record.exc_info or record.exc_info[1] is None:
            return record, fields
        error = record.exc_info[1]
        line = None if self._shows_traceback(record) else explanation_of(error)
        free = [name for name in _FOR_ERROR if name not in dict(fields)]
        if line is not None and free:
            record.exc_info = None
            return record, [*fields, (free[0], line.line)]
        shown = loggable(error)
        record.exc_info = (type(shown), shown, record.exc_info[2])
        return record, fields

    def _shows_traceback(self, record: logging.LogRecord) -> bool:
        is_own = record.name.partition(".")[0] == _OWN
        return self._tracebacks or not is_own or getattr(record, "with_traceback", False)


class JsonFormatter(PlainFormatter):
    """One JSON object per record, with fields as top-level keys after the first four.

    The arguments are those of PlainFormatter. The object has every field of the record, so that
    `fmt`, `style` and `defaults` have no effect; `datefmt` formats its `time`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON on one line."""
        record, fields = self._shortened(record)
        entry: dict[str, object] = {
            "time": self.formatTime(record, self.datefmt),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.msg,
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack_info"] = self.formatStack(record.stack_info)
        entry = {**entry, **{name: value for name, value in fields if name not in entry}}
        return f"{{{', '.join(f'{_json(key)}: {_json(value)}' for key, value in entry.items())}}}"


def _fields_of(record: logging.LogRecord) -> _Fields:
    """Return what was given as `extra`: the action first, the rest in its order."""
    given = [(str(k), v) for k, v in vars(record).items() if k not in _NOT_FIELDS]
    return sorted(given, key=lambda field: field[0] != "action")


def _without_rows(args: Any) -> Any:
    """Return the arguments of a message; errors among them lose what they quote of rows."""
    if isinstance(args, Mapping):
        return {name: _loggable(value) for name, value in args.items()}
    return tuple(map(_loggable, args)) if isinstance(args, tuple) else args


def _loggable(value: Any) -> Any:
    """Return a value without what an error quotes of rows; it may be a plain list of errors."""
    if isinstance(value, BaseException):
        return loggable(value)
    if type(value) in _PLAIN_LISTS and any(isinstance(each, BaseException) for each in value):
        return type(value)(map(_loggable, value))
    return value


def _key(name: str) -> str:
    """Return a field's name as one token: foreign names may contain anything."""
    return re.sub(r"[^\w.-]", "_", name) or "_"


def _plain(value: object) -> str:
    """Return a value as one token: quoted as JSON where it is not one anyway."""
    if isinstance(value, (list, tuple, set, frozenset)):
        text = _listed([_text(each) for each in value])
    elif isinstance(value, (bool, dict)):
        text = _json(value)
    else:
        text = _text(value)
    return text if _ONE_TOKEN.fullmatch(text) and text.isprintable() else _json(text)


def _listed(items: Iterable[str]) -> str:
    """Return a list as `a,b`, or as JSON where an item could be taken for several, or for none."""
    items = list(items)
    return ",".join(items) if all(map(_ONE_ITEM.fullmatch, items)) else _dumps(items)


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
        return message_of(value) if isinstance(value, BaseException) else str(value)
    except Exception as error:  # noqa: BLE001  whatever its `__str__` raises
        return f"(its text cannot be made: {type(error).__name__})"
