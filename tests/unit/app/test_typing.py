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
from sqlalchemy.ext.asyncio import AsyncSession
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
async def coroutine(session: AsyncSession, event: Event) -> None: ...
async def coroutine_list(session: AsyncSession, events: Sequence[Event]) -> None: ...
async def later_check(event: Event) -> LocalOutcome: return LocalOutcome.COMMIT
@shield.publishes("p", key=lambda number: number)
def optional(session: Session) -> int | None: return None
@shield.publishes("q")
async def several(session: AsyncSession) -> list[int]: return [1]
def use(session: Session) -> int: return optional(session) or 0
async def use_later(session: AsyncSession) -> int: return (await several(session))[0]
async def later_hook(context: ConsumeContext) -> None: ...
def generated(session: Session, event: Event) -> Iterator[None]: yield
def of_one(event: Event) -> None: ...

stock.handles("a")(sound)
stock.compensates("a")(sound)
stock.handles_many("b")(sound_list)
shield.local_rollback("a")(sound)
shield.checks("a")(sound_check)
shield.hooks.after_consume(sound_hook)
stock.handles("e")(coroutine)
stock.compensates("e")(coroutine)
stock.handles_many("f")(coroutine_list)
shield.local_rollback("e")(coroutine)
shield.checks("e")(later_check)
# Below, each line is an error.
stock.handles("c")(later)
stock.handles("c")(generated)
stock.handles("c")(of_one)
stock.compensates("c")(later)
stock.handles_many("d")(later_list)
shield.local_rollback("c")(later)
shield.hooks.after_consume(later_hook)
def misuse(session: Session) -> int: return optional(session)
async def misuse_later(session: AsyncSession) -> int: return (await several(session))
"""

PAYLOADS = """
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from shieldtx import Event, ShieldTx

@dataclass
class Booking:
    room: str
class Invoice(BaseModel):
    amount: int
class Note(TypedDict):
    text: str
shield = ShieldTx.from_env()
desk = shield.consumer("desk")

@desk.handles("a", payload=Booking)
def of_dataclass(session: Session, event: Event[Booking]) -> None:
    room: str = event.payload.room
@desk.handles("b", payload=Invoice)
def of_model(session: Session, event: Event[Invoice]) -> None:
    amount: int = event.payload.amount
@desk.compensates("c", payload=Note)
def of_typed_dict(session: Session, event: Event[Note]) -> None:
    text: str = event.payload["text"]
@desk.handles_many("d", payload=list[Note])
def of_lists(session: Session, events: Sequence[Event[list[Note]]]) -> None:
    texts: list[str] = [each["text"] for each in events[0].payload]
@desk.handles("e", payload=Booking | Invoice, alone=True)
def of_union(session: Session, event: Event[Booking | Invoice]) -> None: ...
@desk.handles("f", payload=Booking)
def plain(session: Session, event: Event) -> None:
    anything: str = event.payload
@desk.handles("f2", payload=Booking)
async def awaited(session: AsyncSession, event: Event[Booking]) -> None:
    room: str = event.payload.room
@desk.handles("g")
def untyped(session: Session, event: Event) -> None: ...
def both(session: Session, event: Event[Booking | Invoice]) -> None: ...
desk.handles("h", payload=Booking)(both)
booking: Event[Booking] = Event(type="a", payload=Booking("1"))
anything: Event = Event(type="a")
untyped(Session(), event=anything)
# Below, each line is an error.
desk.handles("i", payload=Booking)(of_model)
desk.handles("i", payload=list[Note])(of_typed_dict)
desk.compensates("i", payload=Booking)(of_typed_dict)
desk.compensates("i", payload=Note)(awaited)
desk.handles_many("i", payload=Note)(of_lists)
desk.handles_many("i", payload=Booking)(of_dataclass)
desk.handles("i", payload=Booking, tries=3)(of_dataclass)
wrong: Event[Booking] = Event(type="a", payload=Invoice(amount=1))
booking.payload.nothing
"""


@pytest.fixture
def own_collector() -> Iterator[None]:
    """Restore the garbage collector, which mypy tunes for the whole process."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("own_collector")
@pytest.mark.parametrize("declarations", [DECLARATIONS, PAYLOADS], ids=["functions", "payloads"])
def test_mypy_reports_each_wrong_declaration_and_no_other(
    tmp_path: Path, declarations: str
) -> None:
    module = tmp_path / "declarations.py"
    module.write_text(declarations)
    options = ["--strict", "--python-version=3.11", f"--cache-dir={ROOT / '.mypy_cache'}"]
    report, trouble, _ = api.run([*options, "--hide-error-context", str(module)])
    assert trouble == ""
    lines = declarations.splitlines()
    first = lines.index("# Below, each line is an error.") + 2
    wrong = {int(line.split(":")[1]) for line in report.splitlines() if ": error:" in line}
    assert wrong == set(range(first, len(lines) + 1)), report
