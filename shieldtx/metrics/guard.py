"""Keeps errors of metrics away from what is counted."""

from __future__ import annotations

import logging
from types import TracebackType

from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.reasons import loggable

log = logging.getLogger(__name__)


class Guard:
    """A context in which an Exception is logged, once a minute for each kind, and goes no further.

    An error of a metric must not undo an effect, skip a record or repeat a write-back. Threads may
    share it.
    """

    def __init__(self) -> None:
        self._lines = LogThrottle()

    def __enter__(self) -> None:
        """Begin to count."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Log an error; return whether it goes no further."""
        if not isinstance(error, Exception):
            return False
        if self._lines.admits(type(error).__name__):
            log.error(
                "metric failed",
                exc_info=loggable(error),
                extra={"action": "metric_failed"},
            )
        return True
