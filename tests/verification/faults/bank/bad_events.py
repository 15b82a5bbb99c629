"""A defective client: it adds events that must not be stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.domain.events import new_event_id
from shieldtx.errors import ConfigurationError, EventRefused, ShieldTxError, UnknownEventType
from tests.verification.faults.bank import TRANSFERRED, Transfer
from tests.verification.faults.bank.journaled import journaled
from tests.verification.faults.journal import Journal

TOO_MUCH = "x" * 2_000_001
"""More bytes than the banks' payload limit."""

LONE_SURROGATE = "\ud800"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bad:
    """A part of an event that no table or topic accepts, and what the error has to name."""

    part: dict[str, Any]
    named: str
    error: type[ShieldTxError] = EventRefused


def bad_parts() -> Iterator[Bad]:
    """Yield every kind of bad event."""

    def transfer(note: str) -> dict[str, Any]:
        return {"payload": Transfer(account="bad", seq=1, amount=1, note=note)}

    yield Bad(part=transfer(TOO_MUCH), named="payload")
    yield Bad(part=transfer("a\0b"), named="payload.note")
    yield Bad(part=transfer(LONE_SURROGATE), named="payload.note")
    for field, longest in (("key", 512), ("biz_key", 512)):
        yield Bad(part={field: "x" * (longest + 1)}, named=field)
        yield Bad(part={field: "a\0b"}, named=field)
        yield Bad(part={field: LONE_SURROGATE}, named=field)
    for value in ("x" * 16_385, "a\0b", LONE_SURROGATE):
        yield Bad(part={"headers": {"reason": value}}, named="headers['reason']")
    yield Bad(part={"headers": {"ce_id": "forged"}}, named="headers['ce_id']")
    yield Bad(part={"headers": {str(n): "" for n in range(129)}}, named="headers")
    for name in ("bank transferred", "../bank", "bank\0", LONE_SURROGATE, "x" * 300):
        yield Bad(part={"type": name}, named=repr(name), error=UnknownEventType)


def add_bad_events(url: str, journal: str, account: str) -> None:
    """Add each bad event inside a transfer that continues, and inside one that ends.

    Raises AssertionError if a bad event is accepted, or refused without naming the fault.
    """
    from tests.verification.faults.bank.upstream import shield, transfer

    engine, notes = create_engine(url), Journal(Path(journal))
    for bad in bad_parts():
        good = new_event_id()
        with journaled(engine, notes, good) as session:
            transfer(session, good, account, 1)
            _refuse(session, notes, bad)
        given_up = new_event_id()
        try:
            with journaled(engine, notes, given_up) as session:
                transfer(session, given_up, account, 1)
                _add(session, notes, bad)
        except bad.error:
            continue
        raise AssertionError(f"an event with a bad {bad.named[:80]} was taken")
    shield.close()


def declare_bad_topics() -> None:
    """Declare events of topics that no broker accepts; raises AssertionError if one is accepted."""
    from tests.verification.faults.bank.upstream import shield

    for number, topic in enumerate(("", ".", "..", "a b", "a/b", "a\0", LONE_SURROGATE, "x" * 201)):
        try:
            shield.declare(f"bank.bad{number}", topic=topic)
        except ConfigurationError as error:
            if repr(topic) not in str(error):
                raise AssertionError(f"{error} does not name the topic") from error
        else:
            raise AssertionError(f"topic {topic!r} was accepted")


def _refuse(session: Session, notes: Journal, bad: Bad) -> None:
    try:
        _add(session, notes, bad)
    except bad.error as error:
        named = error.field if isinstance(error, EventRefused) else str(error)
        if bad.named not in named:
            raise AssertionError(f"the refusal does not name {bad.named}: {error}") from error
    else:
        raise AssertionError(f"an event with a bad {bad.named[:80]} was taken")


def _add(session: Session, notes: Journal, bad: Bad) -> None:
    """Add a bad event as an operation of its own, which is known to fail."""
    from tests.verification.faults.bank.upstream import shield

    operation = new_event_id()
    notes.begin(operation)
    transfer = Transfer(account="bad", seq=1, amount=1)
    good = {"id": operation, "type": TRANSFERRED, "payload": transfer, "key": transfer.account}
    try:
        shield.outbox.add(session, Event(**good | bad.part))
    finally:
        notes.end(operation, answer="fail")
