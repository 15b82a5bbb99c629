"""What a consumer logs about the paused handlers of its group."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.reasons import WITH_TRACEBACK, loggable
from shieldtx.ports.pauses import HandlerKey, Pause

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failing:
    """A handler that is paused for its failures, and the last of them."""

    handler: HandlerKey
    error: Exception
    reason: str
    raise_site: str


class BreakerLog:
    """Logs when handlers are paused, once a minute while they are, and when they run again."""

    def __init__(self, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._lines = LogThrottle(clock=clock)

    def tripped(self, fails: Failing, *, waiting: int | None) -> None:
        """Log that this worker has paused a handler, with the traceback of its error.

        `waiting` is None where the database has not counted the events.
        """
        self._lines.admits((fails.handler[0], fails.handler[1].value))
        log.error(
            "handler is paused after failures",
            exc_info=loggable(fails.error),
            extra={
                "action": "handler_tripped",
                **_failing_fields(self._group, fails),
                "waiting": waiting,
                "advice": "repair the handler and restart the consumers: a probe then ends the "
                f"pause. At once: shieldtx consumers resume {self._group} {fails.handler[0]}",
                **WITH_TRACEBACK,
            },
        )

    def fails_here_alone(self, fails: Failing) -> None:
        """Log that a handler fails in this worker and works in others, with the traceback."""
        self._lines.admits((fails.handler[0], fails.handler[1].value))
        log.error(
            "handler is paused in this worker",
            exc_info=loggable(fails.error),
            extra={
                "action": "handler_fails_here_alone",
                **_failing_fields(self._group, fails),
                "advice": "other workers of the group apply such events: compare this worker's "
                "release, settings and host with theirs, and restart it",
                **WITH_TRACEBACK,
            },
        )

    def paused(self, pause: Pause) -> None:
        """Log that handlers are paused, once a minute."""
        if self._lines.admits((pause.event_type, pause.kind)):
            log.warning(
                "handler is paused",
                extra={"action": "handler_paused", **_fields(self._group, pause)},
            )

    def resumed(self, pause: Pause) -> None:
        """Log that a pause has ended."""
        self._lines.reset((pause.event_type, pause.kind))
        log.info(
            "handler runs again", extra={"action": "handler_resumed", **_fields(self._group, pause)}
        )


def _fields(group: str, pause: Pause) -> dict[str, object]:
    """Return the log fields that name a pause."""
    return {
        "group": group,
        "event_type": pause.event_type,
        "kind": pause.kind,
        "since": pause.since.isoformat(timespec="seconds"),
        "by": pause.by,
        "reason": pause.reason,
    }


def _failing_fields(group: str, fails: Failing) -> dict[str, object]:
    """Return the log fields that name a handler and its failure."""
    return {
        "group": group,
        "event_type": fails.handler[0],
        "kind": fails.handler[1].value,
        "reason": fails.reason,
        "raise_site": fails.raise_site,
    }
