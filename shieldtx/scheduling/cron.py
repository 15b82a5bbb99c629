"""Work at times of the clock: APScheduler says when, and signals end it gracefully."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import NoReturn

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger

from shieldtx.domain.reasons import loggable
from shieldtx.errors import ConfigurationError

log = logging.getLogger(__name__)

EXIT_STOPPED = 0


class _Ended(BaseException):
    """A signal came; not an Exception, so that nothing on the way takes it for an error."""


def run_by_crontab(line: str, run: Callable[[], None]) -> int:
    """Call `run` at each time of a crontab line, in the machine's time zone, until SIGTERM.

    In this thread, so that a signal breaks off a call in the middle, `finally` blocks included. An
    error is logged, and the next time comes all the same. A time that comes while a call still runs
    is left out. Raises ConfigurationError for what is no crontab line.
    """
    try:
        trigger = CronTrigger.from_crontab(line)
    except ValueError as error:
        raise ConfigurationError(
            f"{line!r} is no crontab line: {error}; as in '0 2 * * *', every night at two"
        ) from None
    return run_by(trigger, run)


def run_by(trigger: BaseTrigger, run: Callable[[], None]) -> int:
    """Call `run` whenever the trigger says so; see `run_by_crontab`."""
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    due: SimpleQueue[None] = SimpleQueue()
    scheduler = BackgroundScheduler(job_defaults={"misfire_grace_time": None, "coalesce": True})
    scheduler.add_job(lambda: due.put(None), trigger)

    def on_signal(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  signal's signature
        raise _Ended

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, on_signal)
        with _signals_wait(set(before)):
            # A scheduler that was interrupted between its start and its thread's cannot be stopped.
            scheduler.start()
        while True:
            due.get()
            try:
                run()
            except Exception as error:
                told = loggable(error)
                log.exception("it failed, and is tried again at the next time", exc_info=told)
            with suppress(Empty):
                # Times that came meanwhile.
                while True:
                    due.get_nowait()
    except _Ended:
        return EXIT_STOPPED
    finally:
        for number, handler in before.items():
            if handler is not None:  # else it is not Python's
                signal.signal(number, handler)
        if scheduler.running:
            scheduler.shutdown(wait=False)


@contextmanager
def _signals_wait(numbers: Collection[int]) -> Iterator[None]:
    """Have signals that come inside the block handled at its end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
