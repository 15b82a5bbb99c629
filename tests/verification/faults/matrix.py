"""The fault matrix: runs a fault against two banks, heals, drains and counts."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.verification.faults.banks import DRAIN_WITHIN_S, NOTHING, Banks
from tests.verification.faults.checker import Counts
from tests.verification.faults.reconciliation_outcomes import Reconciled
from tests.verification.faults.world import World

Setting = Callable[[World, ExitStack], Mapping[str, Any]]
"""Opens a fault's own servers; returns the arguments for `World.banks`."""


def the_runs_servers(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Use the servers of the whole run."""
    del world, open_
    return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One row of the matrix: a fault of two banks, after which they have to come to rest."""

    id: str
    name: str
    run: Callable[[Banks], None]
    """Causes the fault under load, and ends it; processes for a drain must then be running."""
    setting: Setting = the_runs_servers
    after: Callable[[Banks], None] = lambda _banks: None
    """Checks, when the banks are at rest, what the counts do not show."""
    why_not: Callable[[], str | None] = lambda: None
    """Returns why this machine cannot run the fault; None where it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The outcome of one fault."""

    fault: Fault
    seed: int
    drain_s: float
    seconds: float
    counts: Counts | None
    reconciled: Reconciled | None = None
    """None where the scenario ran no reconciliation."""
    problems: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Return whether every promise was kept, and the scenario's expectations were met."""
        return self.counts is not None and self.counts.clean and not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return the row for the report."""
        counted = {} if self.counts is None else asdict(self.counts)
        counted.pop("violations", None)
        return {
            "id": self.fault.id,
            "name": self.fault.name,
            **counted,
            "drain_s": round(self.drain_s, 2),
            "seed": self.seed,
            **({} if self.reconciled is None else {"reconciled": asdict(self.reconciled)}),
            "passed": self.passed,
            "problems": list(self.problems),
        }


def run(
    fault: Fault,
    world: World,
    *,
    seed: int,
    settings: Mapping[str, str] = NOTHING,
    drain_within: float = DRAIN_WITHIN_S,
) -> Row:
    """Run a fault; any exception is a problem of its row."""
    began = time.monotonic()
    counts, drain_s, problems = None, 0.0, []
    with ExitStack() as own:
        given = dict(fault.setting(world, own))
        given["settings"] = {**given.get("settings", {}), **settings}
        banks = own.enter_context(world.banks(fault.id, seed=seed, **given))
        try:
            fault.run(banks)
            drain_s = banks.drain(drain_within)
            fault.after(banks)
        except Exception as error:  # noqa: BLE001  the other faults have to be run, too
            problems.append(_text_of(error))
        try:
            counts = banks.count()
        except Exception as error:  # noqa: BLE001  likewise
            problems.append(_text_of(error))
        else:
            problems += [f"{name}: {found}" for name, found in counts.violations.items()]
            problems += banks.quoted()
        problems = [*banks.problems, *banks.leaks(), *problems]
        if problems:
            problems += _state_of(banks)
    return Row(
        fault=fault,
        seed=seed,
        drain_s=drain_s,
        seconds=time.monotonic() - began,
        counts=counts,
        reconciled=banks.reconciled if banks.reconciled.runs else None,
        problems=tuple(problems),
    )


def _text_of(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.name}:{place.lineno})"


def _state_of(banks: Banks) -> list[str]:
    """Return the state of the banks as text."""
    words = []
    for side in banks.sides:
        try:
            words.append(f"{side.name}: outbox {side.outbox()}, inbox {side.inbox()}")
        except Exception as error:  # noqa: BLE001  its database may be what is broken
            words.append(f"{side.name}: {type(error).__name__}")
        words += [
            f"{worker.name} of {side.name} (exit status {worker.exit_status}): {worker.tail(3)}"
            for worker in side.workers
        ]
    return words
