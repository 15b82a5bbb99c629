"""The command line: `shieldtx`."""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType
from typing import NoReturn

__all__ = ["main"]

_INIT_PROCESS = 1


def main() -> None:
    """Run the program; the entry point of the script `shieldtx`."""
    if os.getpid() == _INIT_PROCESS:
        # A container's first process: the kernel drops signals that it does not handle itself.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _leave)
    # Afterwards: these imports take a second, in which a container may get SIGTERM. They leave no
    # garbage to speak of: to look for it would take a sixth of the time, and again with each start.
    gc.disable()
    from shieldtx.cli.program import program  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    program(prog_name="shieldtx")


def _leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  signal's signature
    """End the process as the signal's default does: nothing is in progress yet."""
    os._exit(128 + number)
