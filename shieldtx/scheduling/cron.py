"""Work at times of the clock: APScheduler says when, and signals end it gracefully."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NoReturn

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger

from shieldtx.domain.reasons import loggable
from shieldtx.errors import ConfigurationError
from shieldtx.scheduling.exit_status import EXIT_STOPPED
from shieldtx.scheduling.signals import graceful_signals, signals_deferred

log = logging.getLogger(__name__)


class _Ended(BaseException):
    """A signal came; not an Exception, so that nothing on the way takes it for an error."""


def run_by_crontab(line: str, run: Callable[[], None]) -> int:
    """Call `run` at each time of a crontab line, in the machine's time zone, until a signal.

    In this thread, so that SIGTERM, SIGINT or SIGHUP breaks off a call in the middle, `finally`
    blocks included. An error is logged, and the next time comes all the same. A time that comes
    while a call still runs is left out. Raises ConfigurationError for what is not a crontab line.
    """
    try:
        trigger = CronTrigger.from_crontab(line)
    except ValueError as error:
        raise ConfigurationError(
            f"{line!r} is not a crontab line: {error}; as in '0 2 * * *', every night at two"
        ) from None
    return run_by(trigger, run)


def run_by(trigger: BaseTrigger, run: Callable[[], None]) -> int:
    """Call `run` whenever the trigger says so; see `run_by_crontab`."""
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    due: SimpleQueue[None] = SimpleQueue()
    scheduler = BackgroundScheduler(job_defaults={"misfire_grace_time": None, "coalesce": True})
    scheduler.add_job(lambda: due.put(None), trigger)

    def end(_: int) -> NoReturn:
        raise _Ended

    try:
        with graceful_signals(end):
            with signals_deferred():
                # A scheduler that is interrupted between its start and its thread's cannot be
                # stopped.
                scheduler.start()
            while True:
                due.get()
                _run_logged(run)
                with suppress(Empty):
                    # Times that came meanwhile.
                    while True:
                        due.get_nowait()
    except _Ended:
        return EXIT_STOPPED
    finally:
        if scheduler.running:
            scheduler.shutdown(wait=False)


def _run_logged(run: Callable[[], None]) -> None:
    try:
        run()
    except Exception as error:
        log.exception(
            "scheduled run failed",
            exc_info=loggable(error),
            extra={"action": "scheduled_run_failed"},
        )
