"""Many schedules, over several processes, and their outcomes."""

from __future__ import annotations

import gc
import logging
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.verification.simulation.checker import Violation
from tests.verification.simulation.mutants import MOST_SCHEDULES, SEEDS_PER_RUN, Mutant, applied
from tests.verification.simulation.scheduler import play

_CHUNK = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A schedule with a violation; its seed replays it."""

    seed: int
    violations: tuple[Violation, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationResult:
    """The outcome of a run."""

    schedules: int
    violations: int
    """The number of schedules that violated an invariant."""
    first_violation: Finding | None = None
    """The violation with the smallest seed."""
    invariants: Mapping[str, int] = field(default_factory=dict)
    """The number of schedules that violated each invariant."""


def run(
    schedules: int,
    seed: int,
    processes: int = 2,
    *,
    mutant: str | None = None,
    until: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> SimulationResult:
    """Play `schedules` schedules drawn from `seed`, with the defect of `mutant` if given.

    It ends early when the invariant named by `until` was violated. `progress` is called with the
    number of further schedules that have ended.
    """
    first = seed * SEEDS_PER_RUN
    seeds = range(first, first + schedules)
    return _run(seeds, processes, mutant=mutant, until=until, progress=progress)


def _run(
    seeds: range,
    processes: int,
    *,
    mutant: str | None,
    until: str | None,
    progress: Callable[[int], None],
) -> SimulationResult:
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    played = 0
    findings: list[Finding] = []
    with _played(chunks, processes, mutant) as results:
        for count, found in results:
            played += count
            findings += found
            progress(count)
            if until is not None and until in _invariants(findings):
                break
    findings.sort(key=lambda finding: finding.seed)
    return SimulationResult(
        schedules=played,
        violations=len(findings),
        first_violation=findings[0] if findings else None,
        invariants=_invariants(findings),
    )


def search(mutant: Mutant) -> tuple[bool, int]:
    """Play schedules until one violates the invariant that a mutant has to break.

    Returns whether one did, and after how many.
    """
    result = _run(
        range(mutant.first, mutant.first + MOST_SCHEDULES),
        2,
        mutant=mutant.name,
        until=mutant.invariant,
        progress=lambda done: None,
    )
    return bool(result.invariants.get(mutant.invariant)), result.schedules


def _invariants(findings: Sequence[Finding]) -> Mapping[str, int]:
    return Counter(name for f in findings for name in {v.invariant for v in f.violations})


@contextmanager
def silence() -> Iterator[None]:
    """Suppress the logs of the services during the block: they report the injected faults."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def replay(
    seed: int, trace: list[str] | None = None, *, mutant: str | None = None
) -> Sequence[Violation]:
    """Play the schedule of one seed, and write down its steps."""
    with silence(), applied(mutant):
        return play(seed, trace)


@contextmanager
def _played(
    chunks: Sequence[range], processes: int, mutant: str | None
) -> Iterator[Iterator[tuple[int, list[Finding]]]]:
    work = [(chunk, mutant) for chunk in chunks]
    if processes == 1:
        yield map(_play_chunk, work)
        return
    # The objects of the modules are permanent: collecting them takes a fifth of the time.
    gc.freeze()
    try:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            yield pool.imap_unordered(_play_chunk, work)
    finally:
        gc.unfreeze()


def _play_chunk(work: tuple[range, str | None]) -> tuple[int, list[Finding]]:
    seeds, mutant = work
    findings = []
    with silence(), applied(mutant):
        for seed in seeds:
            try:
                found = play(seed)
            except Exception as error:  # noqa: BLE001  what no service survives is a finding too
                found = [Violation("crash", repr(error))]
            if found:
                findings.append(Finding(seed=seed, violations=tuple(found)))
    return len(seeds), findings
