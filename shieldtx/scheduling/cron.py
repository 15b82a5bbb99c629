"""Runs at the times of a crontab line: APScheduler sets the times, signals end them gracefully."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from shieldtx._extras import import_extra
from shieldtx.domain.reasons import loggable
from shieldtx.errors import ConfigurationError
from shieldtx.scheduling.exit_status import EXIT_STOPPED
from shieldtx.scheduling.signals import graceful_signals, signals_deferred

if TYPE_CHECKING:
    from apscheduler.triggers.base import BaseTrigger

log = logging.getLogger(__name__)


class _Ended(BaseException):
    """A signal has come; not an Exception, so that no code takes it for an error."""


def run_by_crontab(line: str, run: Callable[[], None], *, configuration: str) -> int:
    """Call `run` at each time of a crontab line, in the machine's time zone, until a signal.

    The call runs in this thread, so that SIGTERM, SIGINT or SIGHUP interrupts it, and its `finally`
    blocks run. An error or an interruption is logged with the name of the configuration. After an
    error the next time is kept. A time is skipped while a call still runs. Raises
    ConfigurationError for an invalid crontab line.
    """
    with import_extra("a schedule"):
        from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415  not for writers

    try:
        trigger = CronTrigger.from_crontab(line)
    except ValueError as error:
        raise ConfigurationError(
            f"{line!r} is not a crontab line: {error}; as in '0 2 * * *', every night at two"
        ) from None
    return run_by(trigger, run, configuration=configuration)


def run_by(trigger: BaseTrigger, run: Callable[[], None], *, configuration: str) -> int:
    """Call `run` at each time of the trigger; otherwise like `run_by_crontab`."""
    with import_extra("a schedule"):
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    due: SimpleQueue[None] = SimpleQueue()
    scheduler = BackgroundScheduler(job_defaults={"misfire_grace_time": None, "coalesce": True})
    scheduler.add_job(lambda: due.put(None), trigger)

    def end(_: int) -> NoReturn:
        raise _Ended

    try:
        with graceful_signals(end):
            with signals_deferred():
                # A scheduler that is interrupted between its start and the start of its thread
                # cannot be stopped.
                scheduler.start()
            while True:
                due.get()
                _run_logged(run, configuration)
                with suppress(Empty):
                    # Skip the times that came meanwhile.
                    while True:
                        due.get_nowait()
    except _Ended:
        return EXIT_STOPPED
    finally:
        if scheduler.running:
            scheduler.shutdown(wait=False)


def _run_logged(run: Callable[[], None], configuration: str) -> None:
    try:
        run()
    except Exception as error:
        log.exception(
            "scheduled run failed",
            exc_info=loggable(error),
            extra={"action": "scheduled_run_failed", "configuration": configuration},
        )
    except _Ended:
        # Without this record, monitoring would not know that the run of this time is missing.
        log.error(  # noqa: TRY400  where it was is of no use
            "scheduled run was interrupted",
            extra={"action": "scheduled_run_interrupted", "configuration": configuration},
        )
        raise
