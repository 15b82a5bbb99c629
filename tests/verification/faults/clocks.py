"""Wrong clocks: the time of day in single processes, by libfaketime.

Processes have to be executed with the environment; the fork of a running process keeps its clock.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Final

HOUR: Final = timedelta(hours=1)
_MISSING: Final = "libfaketime is not installed (Debian, Ubuntu: apt-get install libfaketime)"
_OF_NO_USE: Final = "libfaketime is installed, but does not set the clock of this Python off"
_LIBRARIES: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib")
_FILE: Final = "faketime/libfaketimeMT.so.1"  # the variant for threads
_FAKED: Final = Path(__file__).with_name("faked")
_SHARED: Final = Path("/dev/shm")  # noqa: S108 - where libfaketime leaves things
_SHARED_NAME: Final = re.compile(r"(?:sem\.faketime_sem|faketime_shm)_(\d+)")
_LOOK: Final = (
    "import time; time.sleep(0.01); print(time.time() - {now}, time.monotonic() - {mono})"
)
_TOLERANCE_S: Final = 60.0


def environment(off_by: timedelta) -> dict[str, str]:
    """Return the environment of a process whose clock is off by this much, ahead if positive.

    The time of day is off, also in the children of the process; durations and the times of files
    are right. Raises RuntimeError where this is impossible, with the reason of `why_not`.
    """
    if reason := why_not():
        raise RuntimeError(reason)
    sweep()
    return _environment(_library(), off_by)


def environment_of(clock: Path) -> dict[str, str]:
    """Return the environment of a process whose clock `set_off` can change while it runs."""
    given = environment(timedelta(0))
    del given["FAKETIME"]
    return given | {"FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_CACHE_DURATION": "1"}


def set_off(clock: Path, off_by: timedelta) -> None:
    """Set the clock of all processes that were started with `environment_of` this clock."""
    new = clock.with_suffix(".new")
    new.write_text(_off(off_by))
    new.replace(clock)


def why_not() -> str | None:
    """Return why this machine cannot set clocks off; None where it can."""
    if _library() is not None:
        return None
    return _OF_NO_USE if any(_installed()) else _MISSING


def sweep() -> None:
    """Remove the shared memory that libfaketime leaves after a process was killed."""
    for path in _SHARED.iterdir():
        name = _SHARED_NAME.fullmatch(path.name)
        if name and not Path("/proc", name[1]).exists():
            with suppress(OSError):  # owned by another user, or removed by another run
                path.unlink()


@cache
def _library() -> Path | None:
    """Find a library that works: a library of another architecture may be installed."""
    return next(filter(_works, _installed()), None)


def _installed() -> Iterator[Path]:
    for folder in map(Path, _LIBRARIES):
        yield from folder.glob(_FILE)
        yield from folder.glob(f"*/{_FILE}")


def _works(library: Path) -> bool:
    look = _LOOK.format(now=time.time(), mono=time.monotonic())
    done = subprocess.run(
        [sys.executable, "-c", look],
        env=os.environ | _environment(library, HOUR),
        capture_output=True,
        text=True,
        timeout=_TOLERANCE_S,
        check=False,
    )
    try:
        wall, monotonic = map(float, done.stdout.split())
    except ValueError:
        return False
    return all(0 <= gone < _TOLERANCE_S for gone in (wall - HOUR.total_seconds(), monotonic))


def _environment(library: Path | None, off_by: timedelta) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {
        "LD_PRELOAD": f"{library} {os.environ.get('LD_PRELOAD', '')}".strip(),
        "FAKETIME": _off(off_by),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",  # its name in older versions
        "NO_FAKE_STAT": "1",  # or compiled modules would look outdated, and be compiled again
        "PYTHONPATH": os.pathsep.join([str(_FAKED), *([path] if path else [])]),
    }


def _off(by: timedelta) -> str:
    return f"{by.total_seconds():+.3f}"
