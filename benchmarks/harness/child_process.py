"""The measured processes: each gets its job and reports its progress, in lines of JSON."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.harness.samples import BenchmarkFailed, Sample
from shieldtx.embedded.child_process import die_with_parent, log_tail

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build"
READY_S: Final = 60.0
SILENCE_S: Final = 120.0
END_S: Final = 30.0


class Subject:
    """A measured process: `python -m benchmarks.subjects.<name>`.

    It is ready when it has connected. It begins on command, reports its progress after each step,
    and ends by itself or when its input is closed.
    """

    def __init__(self, name: str, job: Mapping[str, Any], *, python: Path | None = None) -> None:
        self.name = name
        self._is_ready = False
        self._log = BUILD / "bench-logs" / f"{name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  a module of this package
                [python or sys.executable, "-m", f"benchmarks.subjects.{name}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509  see there
            )
        threading.Thread(target=self._listen, name=f"listen to {name}", daemon=True).start()
        self._tell(json.dumps(dict(job)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.end()
        else:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def await_ready(self) -> None:
        """Wait until the process is prepared."""
        if self._is_ready:
            return
        if "ready" not in (said := self.hear(READY_S)):
            raise BenchmarkFailed(f"{self.name} said {said} before it was ready")
        self._is_ready = True

    def begin(self) -> None:
        """Make the process begin."""
        self._tell("go")

    def hear(self, within: float = SILENCE_S) -> dict[str, Any]:
        """Return its next report; raises BenchmarkFailed when there are no more reports."""
        try:
            said = self._said.get(timeout=within)
        except queue.Empty:
            raise BenchmarkFailed(f"{self.name} has printed nothing for {within:.0f} s") from None
        if said is None:
            status = self._process.wait()
            raise BenchmarkFailed(
                f"{self.name} ended early, with exit status {status}:\n{log_tail(self._log)}"
            )
        return said

    def end(self) -> None:
        """Have the process end gracefully; raises BenchmarkFailed if it does not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            status = self._process.wait(END_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            status = self._process.wait()
        if status:
            raise BenchmarkFailed(
                f"{self.name} ended with exit status {status}:\n{log_tail(self._log)}"
            )

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))
        self._said.put(None)


def sample_in(said: Mapping[str, Any]) -> Sample:
    """Return the sample in a subject's report."""
    return Sample(**said)


def follow(subjects: Sequence[Subject], until: Callable[[Sample], bool]) -> Sample:
    """Start subjects together; return the first matching sample of their common progress.

    Its counts are sums, its time is that of the latest report of any subject.
    """
    latest: list[Sample | None] = [None] * len(subjects)
    for subject in subjects:
        subject.begin()
    count, moved = -1, time.monotonic()
    while True:
        place = _next_speaker(latest)
        latest[place] = sample_in(subjects[place].hear())
        known = [sample for sample in latest if sample is not None]
        if len(known) < len(subjects):
            continue
        together = Sample(
            at=max(sample.at for sample in known),
            cpu=sum(sample.cpu for sample in known),
            count=sum(sample.count for sample in known),
            purged=sum(sample.purged for sample in known),
            rss=sum(sample.rss for sample in known),
        )
        if until(together):
            return together
        if together.count > count:
            count, moved = together.count, time.monotonic()
        elif time.monotonic() - moved > SILENCE_S:
            raise BenchmarkFailed(f"nothing was done for {SILENCE_S:.0f} s, after {count} events")


def _next_speaker(latest: Sequence[Sample | None]) -> int:
    """Return the subject to read next: the one whose latest report is the oldest."""
    return min(
        range(len(latest)), key=lambda place: -1.0 if (known := latest[place]) is None else known.at
    )
