"""What a consumer logs about the paused handlers of its group."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.reasons import WITH_TRACEBACK, loggable
from shieldtx.ports.pauses import HandlerKey, Pause

log = logging.getLogger(__name__)


class BreakerLog:
    """Logs when handlers are paused, once a minute while they are, and when they run again."""

    def __init__(self, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._lines = LogThrottle(clock=clock)

    def tripped(
        self,
        handler: HandlerKey,
        error: Exception,
        *,
        reason: str,
        raise_site: str,
        waiting: int | None,
    ) -> None:
        """Log that this worker has paused a handler, with the traceback of its error.

        `waiting` is None where the database has not counted the events.
        """
        self._lines.admits((handler[0], handler[1].value))
        log.error(
            "handler is paused after failures",
            exc_info=loggable(error),
            extra={
                "action": "handler_tripped",
                "group": self._group,
                "event_type": handler[0],
                "kind": handler[1].value,
                "reason": reason,
                "raise_site": raise_site,
                "waiting": waiting,
                "advice": "repair the handler and restart the consumers: a probe then ends the "
                f"pause. At once: shieldtx consumers resume {self._group} {handler[0]}",
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
