"""Two kinds of work in one process, in alternating blocks: other load affects both alike."""

from __future__ import annotations

from benchmarks.harness.child_process import Subject, sample_in
from benchmarks.harness.context import Bench
from benchmarks.harness.interleaved import BLOCK
from benchmarks.harness.samples import Run
from benchmarks.harness.servers import RunEnvironment


def by_blocks(bench: Bench, place: RunEnvironment, subject: str) -> tuple[Run, Run]:
    """Run all blocks; return the sums of those of the first kind and of those of the second."""
    runs: tuple[list[Run], list[Run]] = ([], [])
    with Subject(subject, place.job | {"transactions": bench.sizes.transactions}) as working:
        working.await_ready()
        working.begin()
        for block in range(2 * bench.sizes.transactions // BLOCK):
            begin, end = sample_in(working.hear()), sample_in(working.hear())
            runs[block % 2].append(
                Run(events=BLOCK, seconds=end.at - begin.at, cpu_seconds=end.cpu - begin.cpu)
            )
    return _sum(runs[0]), _sum(runs[1])


def _sum(runs: list[Run]) -> Run:
    return Run(
        events=sum(run.events for run in runs),
        seconds=sum(run.seconds for run in runs),
        cpu_seconds=sum(run.cpu_seconds for run in runs),
    )
