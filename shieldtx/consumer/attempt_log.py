"""What a consumer logs about its attempts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from shieldtx.domain.log_fields import event_fields, events_fields
from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.reasons import WITH_TRACEBACK, loggable
from shieldtx.errors import UnknownSchemaVersion
from shieldtx.ports.inbox import Attempt

log = logging.getLogger(__name__)


class AttemptLog:
    """Logs the outcomes of one group's attempts, each after it is written."""

    def __init__(self, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._lines = LogThrottle(clock=clock)

    def handler_failed(self, attempt: Attempt, error: Exception, reason: str) -> None:
        """Log the traceback of a handler's error, once a minute for each kind of error."""
        envelope = attempt.envelope
        if not self._lines.admits((envelope.type, envelope.kind, type(error))):
            return
        log.warning(
            "handler failed",
            exc_info=loggable(error),
            extra={
                "action": "handler_failed",
                **_fields(attempt),
                "reason": reason,
                **WITH_TRACEBACK,
            },
        )

    def failed(self, attempt: Attempt, error: Exception, *, delay: timedelta, reason: str) -> None:
        """Log that another attempt follows; the traceback at the level debug."""
        log.info(
            "attempt failed",
            extra={
                "action": "attempt_failed",
                **_fields(attempt),
                "delay_s": round(delay.total_seconds(), 1),
                "reason": reason,
            },
        )
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "attempt raised an error",
                exc_info=loggable(error),
                extra={"action": "attempt_raised", **_fields(attempt), **WITH_TRACEBACK},
            )

    def taken_back(self, attempt: Attempt, error: Exception, reason: str) -> None:
        """Log that a failure does not count, because the handler is paused."""
        log.warning(
            "failure of paused handler not counted",
            exc_info=loggable(error),
            extra={
                "action": "failure_not_counted",
                **_fields(attempt),
                "reason": reason,
                **WITH_TRACEBACK,
            },
        )

    def refused(self, attempt: Attempt, reason: str, traceback: BaseException | None) -> None:
        """Log that the handler refused the event: its rollback event is written."""
        log.info(
            "event is refused",
            exc_info=traceback,
            extra={
                "action": "event_refused",
                **_fields(attempt),
                "reason": reason,
                **WITH_TRACEBACK,
            },
        )

    def given_up(self, attempt: Attempt, reason: str, traceback: BaseException | None) -> None:
        """Log that no further attempt is made: the rollback event is written."""
        log.error(
            "event is given up",
            exc_info=traceback,
            extra={
                "action": "event_given_up",
                **_fields(attempt),
                "reason": reason,
                **WITH_TRACEBACK,
            },
        )

    def dead(self, attempt: Attempt, reason: str, traceback: BaseException | None) -> None:
        """Log that no further attempt at a compensation is made: the rollback is DEAD."""
        log.error(
            "compensation is dead",
            exc_info=traceback,
            extra={
                "action": "compensation_dead",
                **_fields(attempt),
                "reason": reason,
                **WITH_TRACEBACK,
            },
        )

    def parked(self, attempt: Attempt, reason: str, traceback: BaseException | None) -> None:
        """Log that no further attempt is made: the event is DEAD, without a rollback event."""
        log.error(
            "event is dead",
            exc_info=traceback,
            extra={
                "action": "event_dead",
                **_fields(attempt),
                "reason": reason,
                **WITH_TRACEBACK,
            },
        )

    def lost(self, attempt: Attempt, error: str) -> None:
        """Log that another worker has taken the event over."""
        log.warning(
            "attempt lost its lease",
            extra={"action": "attempt_lost", **_fields(attempt), "error": error},
        )

    def not_recorded(self, attempt: Attempt, reason: str, traceback: BaseException | None) -> None:
        """Log that an error of the database hides whether the outcome of an attempt is written."""
        log.warning(
            "outcome of attempt may be unwritten",
            exc_info=traceback,
            extra={
                "action": "attempt_not_recorded",
                **_fields(attempt),
                "reason": reason,
                **WITH_TRACEBACK,
            },
        )

    def waits(self, attempt: Attempt, error: str) -> None:
        """Log that a rollback's event is not settled yet."""
        log.info(
            "rollback waits for its event",
            extra={"action": "rollback_waits", **_fields(attempt), "error": error},
        )

    def unreadable(self, attempt: Attempt, *, delay: timedelta, reason: str) -> None:
        """Log that an event waits for another release, once a minute for each type."""
        envelope = attempt.envelope
        if self._lines.admits((envelope.type, envelope.kind, UnknownSchemaVersion)):
            log.warning(
                "payload has an unknown version",
                extra={
                    "action": "schema_version_unknown",
                    **_fields(attempt),
                    "delay_s": round(delay.total_seconds(), 1),
                    "reason": reason,
                },
            )

    def interrupted(self, attempts: Sequence[Attempt], error: str) -> None:
        """Log the error that ends the process during these attempts."""
        log.critical(
            "process ends during attempts",
            extra={
                "action": "attempts_interrupted",
                "group": self._group,
                **events_fields([attempt.envelope for attempt in attempts]),
                "error": error,
            },
        )

    def interruption_not_recorded(self, attempts: Sequence[Attempt], failure: Exception) -> None:
        """Log why the rows of these attempts do not name the error that ends the process."""
        log.error(
            "interruption could not be recorded",
            exc_info=loggable(failure),
            extra={
                "action": "interruption_not_recorded",
                "group": self._group,
                **events_fields([attempt.envelope for attempt in attempts]),
            },
        )


def _fields(attempt: Attempt) -> dict[str, object]:
    """Return the log fields that name an attempt."""
    return {"group": attempt.group, **event_fields(attempt.envelope), "attempt": attempt.number}
