"""Loaded at the start of a Python whose clock is off, because its folder is on the path."""

import select
import time


def sleep(seconds: float, /) -> None:
    """Sleep as `time.sleep` does, which asks for the end by the clock, and libfaketime errs."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = sleep
