"""The score: the killed mutants, by kind of test, and why each survivor is acceptable."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.verification.mutation.run import Tried
from tests.verification.mutation.targets import GENERAL

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
"""Reasons why mutants change nothing that is promised, by the mutants' ids."""

Record = Mapping[str, Any]
"""A tried mutant, as in the report."""


def reasons() -> Mapping[str, str]:
    """Return the reason of each mutant that may survive, by its id."""
    found: dict[str, str] = {}
    for module, by_function in tomllib.loads(EQUIVALENT.read_text()).items():
        for mutant, reason in by_function.items():
            found[f"{module}:{mutant}"] = reason
    return found


def read(report: Path) -> list[Record]:
    """Return the findings of earlier runs; empty without a file."""
    if not report.is_file():
        return []
    found: list[Record] = json.loads(report.read_text())["mutants"]
    return found


def survivors(records: Iterable[Record]) -> set[str]:
    """Return the ids of the mutants that survived."""
    return {each["id"] for each in records if each["killed_by"] is None}


def unexplained(records: Iterable[Record]) -> set[str]:
    """Return the ids of the survivors without a reason."""
    return survivors(records) - reasons().keys()


def write(tried: Sequence[Tried], to: Path, existing: Collection[str]) -> list[Record]:
    """Write the score, and return all records: these, and earlier ones of mutants that exist."""
    new = {each.mutant.id: _record(each) for each in tried}
    earlier = {each["id"]: each for each in read(to) if each["id"] in existing}
    records = [each for _, each in sorted((earlier | new).items())]
    known = reasons()
    score = _score(records) | {
        "modules": {module: _score(of_it) for module, of_it in _by_module(records).items()},
        "mutants": [
            {**each, "reason": None if each["killed_by"] else known.get(each["id"])}
            for each in records
        ],
    }
    to.parent.mkdir(parents=True, exist_ok=True)
    complete = to.with_suffix(".new")
    complete.write_text(json.dumps(score, indent=1) + "\n")
    complete.replace(to)
    return records


def table_of(records: Sequence[Record]) -> Table:
    """Return the score by module."""
    table = Table("module", "mutants", "killed", "by general tests", "equivalent", "unexplained")
    known = reasons()
    for module, of_it in (*_by_module(records).items(), ("all", records)):
        killed = [each["killed_by"] for each in of_it if each["killed_by"]]
        excused = sum(name in known for name in survivors(of_it))
        general = sum(test.startswith((*GENERAL, "simulation")) for test in killed)
        left = len(of_it) - len(killed) - excused
        table.add_row(module, *map(str, (len(of_it), len(killed), general, excused, left)))
    return table


def markdown(records: Sequence[Record]) -> Iterator[str]:
    """Return the score by module."""
    yield from ("| module | mutants | killed | equivalent |", "|---|---|---|---|")
    for module, of_it in (*_by_module(records).items(), ("**all**", records)):
        score = _score(of_it)
        excused = len(survivors(of_it) & reasons().keys())
        yield f"| {module} | {score['total']} | {score['killed']} | {excused} |"


def markdown_of_reasons() -> Iterator[str]:
    """Return the mutants that may survive; those of a module with one reason are grouped."""
    together: dict[tuple[str, str], list[str]] = {}
    for each, reason in sorted(reasons().items()):
        module, _, mutant = each.partition(":")
        together.setdefault((module, reason), []).append(mutant)
    for (module, reason), mutants in together.items():
        yield f"- **{module}**: {', '.join(f'`{each}`' for each in mutants)}. {reason}"


def _record(tried: Tried) -> Record:
    return {
        "id": tried.mutant.id,
        "line": tried.mutant.line,
        "killed_by": tried.killed_by,
        "timed_out": tried.timed_out,
        "tests": tried.tests,
        "seconds": round(tried.seconds, 1),
    }


def _score(records: Sequence[Record]) -> dict[str, Any]:
    return {"killed": len(records) - len(survivors(records)), "total": len(records)}


def _by_module(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for each in records:
        found.setdefault(each["id"].partition(":")[0], []).append(each)
    return dict(sorted(found.items()))
