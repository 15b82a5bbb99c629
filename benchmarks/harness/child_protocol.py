"""The reports of a measured process; imports only Python, since peers use it too."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any


class ProgressReporter:
    """The measured process's side of the protocol: a job, "ready", "go", samples."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = json.loads(sys.stdin.readline())
        self._stopped = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether the harness has ended the run."""
        return self._stopped.is_set()

    def ready(self) -> None:
        """Report that the process is prepared, and wait for the command to begin."""
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
        threading.Thread(target=self._await_end, daemon=True).start()

    def sample(self, count: int, **more: Any) -> None:
        """Report how many events are done so far."""
        print(json.dumps(stamp() | {"count": count} | more), flush=True)

    def await_end(self) -> None:
        """Wait until the harness ends the run."""
        self._stopped.wait()

    def _await_end(self) -> None:
        sys.stdin.read()
        self._stopped.set()


def stamp() -> dict[str, float]:
    """Return the time and the processor time of this process so far, in seconds."""
    return {"at": time.monotonic(), "cpu": time.process_time()}
