"""The operator at the terminal: the recorded user, and the confirmation prompt."""

from __future__ import annotations

import getpass
import os
import socket
import sys


def current_operator() -> str:
    """Return the user recorded in the audit log: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers run as users without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def confirm(question: str) -> bool:
    """Ask for confirmation on standard error: standard output is for results."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
