"""Child processes with pipes: the kernel ends them when the tests end in any way.

Without a pipe for messages, shieldtx.embedded.child_process.ChildProcess does more.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shieldtx.embedded.child_process import die_with_parent


def start(command: Sequence[str | Path], **settings: Any) -> subprocess.Popen[Any]:
    """Start a process as subprocess.Popen does; it dies with the thread that started it."""
    die = die_with_parent(signal.SIGKILL)

    def prepare() -> None:
        die()
        # Tests that run under nohup ignore SIGHUP, and their child processes would too.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    return subprocess.Popen(command, preexec_fn=prepare, **settings)  # noqa: PLW1509 - see there
