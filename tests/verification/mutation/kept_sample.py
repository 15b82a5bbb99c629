"""A fixed sample of mutants with the test that detects each: quick enough for every change."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.verification.mutation.mutants import Mutant
from tests.verification.mutation.report import Record

FILE = Path(__file__).with_name("sample.json")
LONGEST_S = 5.0
"""Maximum seconds of a mutant of the sample."""


def killers() -> Mapping[str, str]:
    """Return the test that detects a mutant, by the mutant's id."""
    found: dict[str, str] = json.loads(FILE.read_text())
    return found


def of(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the mutants of the sample; raises LookupError for one that is not among these."""
    known = killers()
    by_id = {mutant.id: mutant for mutant in mutants}
    if gone := sorted(known.keys() - by_id.keys()):
        raise LookupError(
            f"the code of {len(gone)} mutants of the sample has changed, {gone[0]!r} is the first: "
            "run `make mutation` for its module, and keep another sample with --keep"
        )
    return [by_id[each] for each in known]


def keep(records: Sequence[Record], size: int) -> None:
    """Draw a sample of the mutants that runs have killed, and write it to the file."""
    quick = [
        each
        for each in records
        if "::" in (each["killed_by"] or "")
        and not each["timed_out"]
        and each["seconds"] < LONGEST_S
    ]
    drawn = random.Random(0).sample(quick, min(size, len(quick)))
    kept = {each["id"]: each["killed_by"] for each in drawn}
    FILE.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
