"""The log of Kafka's client: it contains passwords, and is the only source of some errors.

The application sets the levels of these loggers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kafka.errors import KafkaError

_HIDDEN: Final = "********"
# These log whole requests at level DEBUG, including the request with the password.
_LOGGERS_WITH_PASSWORDS: Final = ("kafka.net.connection", "kafka.protocol.parser")
_CONNECTING: Final = "kafka.net.manager"
_SENDING: Final = "kafka.producer.sender"


class _PasswordFilter(logging.Filter):
    """Redacts passwords in messages, as text and in the representation of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record, with the passwords redacted."""
        message = record.getMessage()
        found = [form for form in self.forms if form in message]
        if found:
            for form in found:
                message = message.replace(form, _HIDDEN)
            record.msg, record.args = message, ()
        return True


class _ErrorCollector(logging.Filter):
    """Collects the errors in the arguments of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[KafkaError] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        self.errors += [argument for argument in arguments if isinstance(argument, KafkaError)]
        return True


class _ErrorNameCollector(logging.Filter):
    """Collects the names of errors that messages contain."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        self.names += [a for a in arguments if isinstance(a, str) and a.endswith("Error")]
        return True


_PASSWORD_FILTER: Final = _PasswordFilter()


def hide(password: str) -> None:
    """Redact a password in the client's log, for the rest of the process."""
    _PASSWORD_FILTER.forms |= {password, repr(password)[1:-1], repr(password.encode())[2:-1]}
    for name in _LOGGERS_WITH_PASSWORDS:
        logging.getLogger(name).addFilter(_PASSWORD_FILTER)


def show_again(password: str) -> None:
    """End the redaction of a password that is replaced by another one."""
    _PASSWORD_FILTER.forms -= {password, repr(password)[1:-1], repr(password.encode())[2:-1]}


@contextmanager
def connection_errors() -> Iterator[list[KafkaError]]:
    """Collect the causes of failed connection attempts: the client raises only a timeout."""
    collector = _ErrorCollector()
    logger = logging.getLogger(_CONNECTING)
    logger.addFilter(collector)
    try:
        yield collector.errors
    finally:
        logger.removeFilter(collector)


@contextmanager
def sending_errors() -> Iterator[list[str]]:
    """Collect the brokers' errors for batches that the client retried."""
    collector = _ErrorNameCollector()
    logger = logging.getLogger(_SENDING)
    logger.addFilter(collector)
    try:
        yield collector.names
    finally:
        logger.removeFilter(collector)
