"""The log of Kafka's client: it contains passwords, and some reasons for delays are only there.

How much of it is kept is up to the application.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kafka.errors import KafkaError

_HIDDEN: Final = "********"
# They log whole requests at level DEBUG, the one with the password too.
_LOGGERS_WITH_PASSWORDS: Final = ("kafka.net.connection", "kafka.protocol.parser")
_CONNECTING: Final = "kafka.net.manager"
_SENDING: Final = "kafka.producer.sender"


class _PasswordFilter(logging.Filter):
    """Replaces passwords in messages, as text and as bytes are shown."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let everything pass, without the passwords."""
        message = record.getMessage()
        found = [form for form in self.forms if form in message]
        if found:
            for form in found:
                message = message.replace(form, _HIDDEN)
            record.msg, record.args = message, ()
        return True


class _ErrorCollector(logging.Filter):
    """Remembers the errors that messages are about."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[KafkaError] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Let everything pass."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        self.errors += [argument for argument in arguments if isinstance(argument, KafkaError)]
        return True


class _ErrorNameCollector(logging.Filter):
    """Remembers the names of errors that messages are about."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Let everything pass."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        self.names += [a for a in arguments if isinstance(a, str) and a.endswith("Error")]
        return True


_PASSWORD_FILTER: Final = _PasswordFilter()


def hide(password: str) -> None:
    """Keep a password out of the client's log, for the rest of the process."""
    _PASSWORD_FILTER.forms |= {password, repr(password)[1:-1], repr(password.encode())[2:-1]}
    for name in _LOGGERS_WITH_PASSWORDS:
        logging.getLogger(name).addFilter(_PASSWORD_FILTER)


@contextmanager
def connection_errors() -> Iterator[list[KafkaError]]:
    """Collect why attempts to connect failed: the caller gets only a timeout."""
    collector = _ErrorCollector()
    logger = logging.getLogger(_CONNECTING)
    logger.addFilter(collector)
    try:
        yield collector.errors
    finally:
        logger.removeFilter(collector)


@contextmanager
def sending_errors() -> Iterator[list[str]]:
    """Collect the errors of brokers for batches that the client retried."""
    collector = _ErrorNameCollector()
    logger = logging.getLogger(_SENDING)
    logger.addFilter(collector)
    try:
        yield collector.names
    finally:
        logger.removeFilter(collector)
