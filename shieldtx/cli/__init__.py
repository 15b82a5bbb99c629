"""The command line: `shieldtx`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from shieldtx._extras import missing_extra

__all__ = ["main"]

_INIT_PROCESS = 1
_MISCONFIGURED = 2


def main() -> None:
    """Run the program; the entry point of the script `shieldtx`."""
    if os.getpid() == _INIT_PROCESS:
        # As process 1 of a container: the kernel drops signals without a handler.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _leave)
    # Imported after the signal handlers are set: the imports take a second, in which a container
    # may get SIGTERM. They leave hardly any garbage, and collecting it would take a sixth of each
    # start.
    gc.disable()
    try:
        from shieldtx.cli.program import program  # noqa: PLC0415
    except ModuleNotFoundError as error:
        line = missing_extra("the command shieldtx", error)
        if line is None:
            raise
        sys.stderr.write(f"error: {line}\n")
        sys.exit(_MISCONFIGURED)

    gc.freeze()
    gc.enable()
    program(prog_name="shieldtx")


def _leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  signal's signature
    """End the process as the signal's default action does: nothing is in progress yet."""
    os._exit(128 + number)
