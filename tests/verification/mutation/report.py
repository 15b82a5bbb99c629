"""The score: what was killed, by which kind of test, and why each survivor may live."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.verification.mutation.run import Tried
from tests.verification.mutation.targets import GENERAL

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
"""Reasons why mutants change nothing that is promised, by the mutants' ids."""


def reasons() -> Mapping[str, str]:
    """Return the reason of each mutant that may survive, by its id."""
    found: dict[str, str] = {}
    for module, by_function in tomllib.loads(EQUIVALENT.read_text()).items():
        for mutant, reason in by_function.items():
            found[f"{module}:{mutant}"] = reason
    return found


def unexplained(tried: Sequence[Tried]) -> list[Tried]:
    """Return the survivors for which no reason is written down."""
    known = reasons()
    return [each for each in tried if not each.is_killed and each.mutant.id not in known]


def as_json(tried: Sequence[Tried]) -> dict[str, Any]:
    """Return the score for `build/mutation.json`."""
    known = reasons()
    return {
        "killed": sum(each.is_killed for each in tried),
        "total": len(tried),
        "modules": {
            module: {"killed": sum(each.is_killed for each in of_it), "total": len(of_it)}
            for module, of_it in _by_module(tried).items()
        },
        "mutants": [
            {
                "id": each.mutant.id,
                "line": each.mutant.line,
                "killed_by": each.killed_by,
                "timed_out": each.timed_out,
                "tests": each.tests,
                "seconds": round(each.seconds, 1),
                "reason": None if each.is_killed else known.get(each.mutant.id),
            }
            for each in tried
        ],
    }


def table_of(tried: Sequence[Tried]) -> Table:
    """Return the score by module."""
    table = Table("module", "mutants", "killed", "by general tests", "equivalent", "unexplained")
    known = reasons()
    for module, of_it in (*_by_module(tried).items(), ("all", list(tried))):
        killed = [each for each in of_it if each.is_killed]
        survivors = [each for each in of_it if not each.is_killed]
        excused = sum(each.mutant.id in known for each in survivors)
        general = sum(
            (each.killed_by or "").startswith((*GENERAL, "simulation")) for each in killed
        )
        counts = (len(of_it), len(killed), general, excused, len(survivors) - excused)
        table.add_row(module, *map(str, counts))
    return table


def write(tried: Sequence[Tried], to: Path) -> None:
    """Write the score as JSON."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(as_json(tried), indent=1) + "\n")


def _by_module(tried: Sequence[Tried]) -> dict[str, list[Tried]]:
    found: dict[str, list[Tried]] = {}
    for each in tried:
        found.setdefault(each.mutant.module.removeprefix("shieldtx."), []).append(each)
    return dict(sorted(found.items()))
