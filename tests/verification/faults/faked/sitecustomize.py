"""Loaded at the start of a Python whose clock is off, because its folder is on the path."""

import select
import time


def sleep(seconds: float, /) -> None:
    """Sleep without `time.sleep`, which computes its end by the clock, where libfaketime errs."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = sleep
