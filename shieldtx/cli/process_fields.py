"""The service and the process that a log record of a worker comes from."""

from __future__ import annotations

import logging
import os


class ProcessFields(logging.Filter):
    """Adds the fields `service` and `pid` to each record, once the service is known."""

    def __init__(self) -> None:
        super().__init__()
        self.service: str | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that the record does not have itself; admit every record."""
        if self.service is not None:
            record.__dict__.setdefault("service", self.service)
            record.__dict__.setdefault("pid", os.getpid())
        return True


def name_service(source: str) -> None:
    """Have the handlers that the command line has set up name this service in each record."""
    for handler in logging.getLogger().handlers:
        for each in handler.filters:
            if isinstance(each, ProcessFields):
                each.service = source
