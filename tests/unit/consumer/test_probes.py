"""The probes of a pass: how many begin, and which events they take."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from shieldtx.consumer.breaker import Breaker
from shieldtx.consumer.lanes import OneLane
from shieldtx.consumer.probes import Probes
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind
from shieldtx.ports.inbox import AttemptOutcome
from shieldtx.ports.pauses import HandlerKey
from tests.unit.consumer.test_breaker import attempt_of
from tests.verification.simulation.database import Clock, Database, Shard
from tests.verification.simulation.pauses import MemoryPauseStore

HANDLERS: list[HandlerKey] = [(f"t{number}", TxKind.COMMIT) for number in range(3)]
FIRST_PROBE = timedelta(seconds=5)


class Pass:
    """A pass with due probes of all handlers, whose events fail."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pauses = MemoryPauseStore(Database(clock=self.clock, shards=[Shard(0)]))
        self.breaker = Breaker(
            group="stock",
            pauses=self.pauses,
            first_probe=FIRST_PROBE,
            clock=lambda: self.clock.now,
        )
        self.probed: list[Envelope] = []
        self.has_unattempted = True
        self.time_is_up_after = len(HANDLERS)
        for handler in HANDLERS:
            self.pauses.trip("stock", handler, reason="TypeError", first_probe=FIRST_PROBE)
        self.clock.now += 6
        declared = SimpleNamespace(lease=timedelta(minutes=1))
        self.probes = Probes(
            group=SimpleNamespace(declared=lambda: [(key, declared) for key in HANDLERS]),  # type: ignore[arg-type]
            store=self,  # type: ignore[arg-type]
            processor=self,  # type: ignore[arg-type]
            runner=OneLane(),
            is_time_up=lambda: len(self.probed) >= self.time_is_up_after,
        )

    def longest_due(self, group: str, *, handled: Any) -> Envelope:
        assert group == "stock"
        [(event_type, kind)] = handled
        return attempt_of("longest due", kind=kind, type_=event_type).envelope

    def newest_unattempted(self, group: str, *, handled: Any) -> Envelope | None:
        assert group == "stock"
        [(event_type, kind)] = handled
        if not self.has_unattempted:
            return None
        return attempt_of("newest", kind=kind, type_=event_type).envelope

    def process(self, envelope: Envelope, *, is_probe: bool) -> AttemptOutcome:
        assert is_probe
        self.probed.append(envelope)
        failed = attempt_of()._replace(envelope=envelope)
        assert self.breaker.takes_back(failed, TypeError(), raise_site="", reason="TypeError")
        return AttemptOutcome.BLOCKED


@pytest.mark.parametrize("number", [0, 1, 3])
def test_no_probe_begins_or_is_claimed_when_the_time_is_up(number: int) -> None:
    one = Pass()
    one.time_is_up_after = number
    one.probes.run_once()
    assert [envelope.type for envelope in one.probed] == [key[0] for key in HANDLERS[:number]]
    due = [pause.event_type for pause in one.pauses.pauses("stock") if pause.is_probe_due]
    assert due == [key[0] for key in HANDLERS[number:]]


@pytest.mark.parametrize("has_unattempted", [True, False])
def test_every_second_probe_takes_the_newest_unattempted_event(has_unattempted: bool) -> None:
    one = Pass()
    one.has_unattempted = has_unattempted
    one.time_is_up_after = 100
    # After each failure, the worker leaves the next probe to others for one pass.
    for _ in range(7):
        one.probes.run_once()
        one.clock.now += 600
    taken = [envelope.key for envelope in one.probed if envelope.type == "t0"]
    assert taken == ["longest due", "newest" if has_unattempted else "longest due"] * 2
