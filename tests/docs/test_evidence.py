"""The evidence of the guarantees: each fault and mutant that the page names is explained."""

from __future__ import annotations

import re
from itertools import chain

from benchmarks.targets.figures import FIGURES
from tests.docs.pages import DOCS
from tests.verification.faults.mutants import MUTANTS

GUARANTEES = (DOCS / "explanation" / "guarantees.md").read_text()
PROOF = (DOCS / "explanation" / "proof.md").read_text()
PERFORMANCE = (DOCS / "explanation" / "performance.md").read_text()


def named(letter: str, text: str) -> set[str]:
    """Return the faults (F) or mutants (M) that a text names."""
    return set(re.findall(rf"\b({letter}\d+)[a-z]?\b", text))


def test_faults_that_guarantees_name_are_in_the_proof() -> None:
    assert named("F", GUARANTEES)
    assert named("F", GUARANTEES) <= named("F", PROOF)


def test_mutants_of_the_banks_are_explained_in_the_proof() -> None:
    _, _, mutants = PROOF.partition("## Mutants")
    explained, _, _ = mutants.partition("## Defects")
    rows = re.findall(r"^(?:\| (M.*?) \||- \*\*(M.*?)\*\*)", explained, re.MULTILINE)
    listed = named("M", " ".join(chain.from_iterable(rows)))
    assert set(MUTANTS) <= listed
    assert named("M", GUARANTEES) <= listed


def test_all_figures_are_on_the_page_with_their_targets() -> None:
    for figure in FIGURES:
        row = f"| {figure.title} | {figure.direction.value} {figure.shown(figure.target)} |"
        assert row in PERFORMANCE
