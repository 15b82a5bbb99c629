"""Tests that mutation testing counts exactly what tests detect."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.verification.mutation import kept_sample, report
from tests.verification.mutation.changes import changes
from tests.verification.mutation.mutants import mutants_of
from tests.verification.mutation.reach import Reach
from tests.verification.mutation.reach_cache import ReachCache
from tests.verification.mutation.statement_users import lines_that_run
from tests.verification.mutation.targets import modules

ROOT = Path(__file__).parents[3]


def changed(body: str) -> dict[str, str]:
    """Return the text of a function after each of its changes, by the change's description."""
    tree = ast.parse(f"def f():\n    {body}\n")
    [function] = tree.body
    assert isinstance(function, ast.FunctionDef)
    return {
        change.what: ast.unparse(change.applied_to(tree)).removeprefix("def f():\n    ")
        for change in changes(function)
    }


@pytest.mark.parametrize(
    ("before", "what", "after"),
    [
        ("return a == b", "negate a == b", "return a != b"),
        ("return a < b", "negate a < b", "return a >= b"),
        ("return a is None", "negate a is None", "return a is not None"),
        ("return a and b", "swap and, or in a and b", "return a or b"),
        ("return a and b", "drop a of a and b", "return b"),
        ("return not a", "drop not of not a", "return a"),
        ("return a if b else c", "swap branches of a if b else c", "return c if b else a"),
        ("return a - b", "swap +, - in a - b", "return a + b"),
        ("return q.where(a, b)", "drop a of where", "return q.where(b)"),
        ("return q.where(a)", "drop .where(a)", "return q"),
        ("return q.with_for_update()", "drop .with_for_update()", "return q"),
        ("return q.values(a=b, c=d)", "drop a=b of values", "return q.values(c=d)"),
        ("return not_(a)", "drop not_ of not_(a)", "return a"),
        ("return c.is_(None)", "swap is_ for is_not in c.is_(None)", "return c.is_not(None)"),
        ("return any(a)", "swap any for all in any(a)", "return all(a)"),
        ("self.a = b", "drop self.a = b", "pass"),
        ("raise a", "drop raise a", "pass"),
        ("a(); b()", "swap a() and b()", "b()\n    a()"),
        ("a()", "drop a()", "pass"),
    ],
)
def test_a_predicate_a_branch_or_a_call_is_changed(before: str, what: str, after: str) -> None:
    assert changed(before)[what] == after


def test_a_condition_is_negated_once() -> None:
    assert [what for what in changed("if a: b = 1") if "negate" in what] == ["negate a"]
    assert len(changed("if a == b: c = 1")) == 1


@pytest.mark.parametrize(
    "body", ["'''A docstring.'''", "a = 1", "yield a", "return a", "log.info(a)"]
)
def test_what_decides_nothing_is_left_alone(body: str) -> None:
    assert changed(body) == {}


def test_there_are_enough_mutants_and_each_has_a_name_of_its_own() -> None:
    mutants = mutants_of(modules())
    assert len(mutants) >= 300
    assert len({mutant.id for mutant in mutants}) == len(mutants)
    assert len({mutant.module for mutant in mutants}) >= 40


def test_every_reason_is_about_a_mutant_that_there_is() -> None:
    assert report.reasons().keys() <= {mutant.id for mutant in mutants_of(modules())}


def test_every_mutant_of_the_kept_sample_is_one_that_there_is() -> None:
    assert len(kept_sample.of(mutants_of(modules()))) == len(kept_sample.killers())


def test_the_cheapest_tests_that_reach_the_lines_come_first() -> None:
    reach = Reach()
    reach.add({"m": {3: ["slow", "fails"], 4: ["quick"], 9: ["elsewhere"]}})
    reach.seconds.update(slow=2.0, quick=0.1, fails=0.1, elsewhere=0.1)
    reach.failed.add("fails")
    assert reach.tests_of("m", 3, 5) == ["quick", "slow"]


@pytest.mark.parametrize(
    ("function", "users"),
    [
        ("hand_over", {"relay_store.py"}),
        ("unfenced", {"fence.py"}),
        ("_has_a_key_on_hold", {"relay_store.py"}),
        ("is_needed_in_inbox", {"retention.py"}),
    ],
)
def test_a_statement_is_reached_where_it_is_run(function: str, users: set[str]) -> None:
    assert {Path(path).name for path, _ in lines_that_run(function)} == users


def test_measurements_are_kept_while_their_files_are_unchanged(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("a = 1")
    test = str(tmp_path / "test_module.py")
    Path(test).write_text("b = 2")
    reach = Reach()
    reach.add({str(module): {3: [f"{test}::one", f"{test}::two"], 4: [f"{test}::two"]}})
    reach.seconds.update({f"{test}::one": 1.0, f"{test}::two": 2.0})
    reach.failed.add(f"{test}::two")
    ReachCache(tmp_path / "cache", [str(module)]).store(reach)
    assert ReachCache(tmp_path / "cache", [str(module)]).load([test]) == reach

    Path(test).write_text("b = 3")
    assert ReachCache(tmp_path / "cache", [str(module)]).load([test]) == Reach()
    Path(test).write_text("b = 2")
    module.write_text("a = 2")
    assert ReachCache(tmp_path / "cache", [str(module)]).load([test]) == Reach()


SUBJECT = """
from functools import lru_cache

def smaller(a, b):
    if a < b:
        return a
    return b

@lru_cache
def kept(a):
    seen.append(a)
    return a + 1

seen = []
"""
TESTS = """
from subject import kept, smaller

def test_the_smaller_one():
    assert smaller(1, 2) == 1

def test_kept():
    assert kept(1)
"""


def test_run_separates_killed_mutants_from_survivors(tmp_path: Path) -> None:
    """In a separate project, a tested change is killed, and an untested change survives."""
    (tmp_path / "subject.py").write_text(SUBJECT)
    (tmp_path / "test_subject.py").write_text(TESTS)
    found = _run(tmp_path)
    assert found == {
        "subject:smaller: negate a < b": "test_the_smaller_one",
        "subject:kept: swap +, - in a + 1": "test_kept",
        "subject:kept: drop seen.append(a)": None,
    }


def _run(project: Path) -> dict[str, Any]:
    """Run the tool on a project in a process of its own; return the killer of each mutant."""
    program = """
import json, sys
from rich.console import Console
from tests.verification.mutation.mutants import mutants_of, path_of
from tests.verification.mutation.run import MutationRun, collect_and_run
run = MutationRun(mutants_of(["subject"]), [path_of("subject")], Console(stderr=True))
status = collect_and_run(run, [sys.argv[1]])
found = {each.mutant.id: each.killed_by for each in run.tried}
print(json.dumps({name: test and test.split("::")[1] for name, test in found.items()}))
sys.exit(status)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(project)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{project}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_reasons_of_survivors_stand_in_the_documentation() -> None:
    documented = (ROOT / "docs/explanation/proof.md").read_text()
    missing = [line for line in report.markdown_of_reasons() if line not in documented]
    assert not missing, "python -m tests.verification.mutation --markdown"
