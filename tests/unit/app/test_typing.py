"""The errors that mypy reports for an application's declarations."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from mypy import api

from tests.support.project import ROOT

DECLARATIONS = """
from collections.abc import Iterator, Sequence
from sqlalchemy.orm import Session
from shieldtx import Event, LocalOutcome, ShieldTx
from shieldtx.hooks.contexts import ConsumeContext

shield = ShieldTx.from_env()
stock = shield.consumer("stock")

def sound(session: Session, event: Event) -> None: ...
def sound_list(session: Session, events: Sequence[Event]) -> None: ...
def sound_check(event: Event) -> LocalOutcome: return LocalOutcome.COMMIT
def sound_hook(context: ConsumeContext) -> None: ...
async def later(session: Session, event: Event) -> None: ...
async def later_list(session: Session, events: Sequence[Event]) -> None: ...
async def later_check(event: Event) -> LocalOutcome: return LocalOutcome.COMMIT
async def later_hook(context: ConsumeContext) -> None: ...
def generated(session: Session, event: Event) -> Iterator[None]: yield
def of_one(event: Event) -> None: ...

stock.handles("a")(sound)
stock.compensates("a")(sound)
stock.handles_many("b")(sound_list)
shield.local_rollback("a")(sound)
shield.checks("a")(sound_check)
shield.hooks.after_consume(sound_hook)
# Below, each line is an error.
stock.handles("c")(later)
stock.handles("c")(generated)
stock.handles("c")(of_one)
stock.compensates("c")(later)
stock.handles_many("d")(later_list)
shield.local_rollback("c")(later)
shield.checks("c")(later_check)
shield.hooks.after_consume(later_hook)
"""


@pytest.fixture
def own_collector() -> Iterator[None]:
    """Restore the garbage collector, which mypy tunes for the whole process."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("own_collector")
def test_mypy_refuses_functions_that_a_plain_call_does_not_run(tmp_path: Path) -> None:
    module = tmp_path / "declarations.py"
    module.write_text(DECLARATIONS)
    options = ["--strict", "--python-version=3.11", f"--cache-dir={ROOT / '.mypy_cache'}"]
    report, trouble, _ = api.run([*options, "--hide-error-context", str(module)])
    assert trouble == ""
    lines = DECLARATIONS.splitlines()
    first = lines.index("# Below, each line is an error.") + 2
    wrong = {int(line.split(":")[1]) for line in report.splitlines() if ": error:" in line}
    assert wrong == set(range(first, len(lines) + 1)), report
