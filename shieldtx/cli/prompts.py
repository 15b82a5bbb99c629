"""The person in front of the terminal: who it is, and whether to go on."""

from __future__ import annotations

import getpass
import os
import socket
import sys


def current_operator() -> str:
    """Return in whose name a command runs, for the audit: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers run as users without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def confirm(question: str) -> bool:
    """Ask on standard error: standard output is for results."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
