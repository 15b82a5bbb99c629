"""Tests of the same world with Hypothesis, which searches a shortest path to a violation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from shieldtx.ports.broker import BATCH_BYTES
from tests.verification.simulation.banks import Transfer
from tests.verification.simulation.broker import Trouble
from tests.verification.simulation.campaign import silence
from tests.verification.simulation.fault_schedule import TROUBLES, Fault
from tests.verification.simulation.mutants import applied
from tests.verification.simulation.scheduler import finish
from tests.verification.simulation.world import World
from tests.verification.simulation.world_config import WorldConfig

SECONDS = st.sampled_from([0.5, 2.0, 11.0])
ANY = st.integers(0, 11)
STEPS = st.lists(st.tuples(st.sampled_from(["work", "renew", "write", "wait"]), ANY), max_size=8)

TRANSFERS = st.lists(
    st.builds(
        Transfer,
        number=st.just(0),
        key=st.sampled_from(["k", "k", "l", None]),
        amount=st.just(0),
        is_committed=st.sampled_from([True, True, True, False]),
        delay=st.sampled_from([0.0, 0.0, 3.0]),
        failures=st.sampled_from([0, 0, 1, 3]),
        is_refused=st.booleans(),
        is_fraud=st.booleans(),
        refund_failures=st.sampled_from([0, 0, 1, 3]),
    ),
    min_size=2,
    max_size=5,
).map(lambda ts: tuple(replace(t, number=n, amount=2**n) for n, t in enumerate(ts)))

SHAPES = st.builds(
    WorldConfig,
    transfers=TRANSFERS,
    relays=st.just(2),
    consumers=st.just(2),
    shards=st.integers(1, 2),
    partitions=st.integers(1, 2),
    relay_batch=st.sampled_from([1, 8]),
    consumer_batch=st.sampled_from([1, 10]),
    attempts=st.integers(1, 3),
    has_fraud_group=st.booleans(),
    half_messages=st.sampled_from([frozenset(), frozenset(), frozenset({0, 2, 3})]),
    topics_are_apart=st.booleans(),
    old_relays=st.integers(0, 1),
    batch_bytes=st.sampled_from([1, BATCH_BYTES]),
)

TROUBLE = st.builds(
    Trouble,
    kind=st.sampled_from(TROUBLES),
    at=st.just(0),
    stored=st.integers(0, 2),
    sent=st.integers(0, 3),
    later=st.booleans(),
)


class ArmedFates:
    """Injects only the fault that a rule has requested, at the position that it named."""

    def __init__(self) -> None:
        self.faults: dict[int, Fault] = {}
        self.troubles: deque[Trouble] = deque()
        self.suspended_for = 0
        self._places = 0

    def arm(self, places: int, fault: Fault) -> None:
        """Request a fault `places` positions ahead."""
        self.faults[self._places + places] = fault

    def fault(self) -> Fault:
        self._places += 1
        return self.faults.pop(self._places - 1, Fault.NONE)

    def trouble(self, _: int) -> Trouble | None:
        return self.troubles.popleft() if self.troubles else None

    def error_inside(self) -> bool:
        return False

    def error_at_a_call(self) -> bool:
        return False

    def chance(self, _: float) -> bool:
        return False

    def between(self, least: int, most: int) -> int:
        return max(least, min(most, self.suspended_for))


class Banks(RuleBasedStateMachine):
    """The possible steps, as rules; after the last one everything heals, drains and is checked."""

    @initialize(config=SHAPES)
    def begin(self, config: WorldConfig) -> None:
        self.schedule = ArmedFates()
        self.world = World(config, self.schedule)
        self.meanwhile: deque[tuple[str, int]] = deque()
        self.world.next_step = self.step
        for relay in self.world.relays:
            self.world.renew(relay)

    @rule()
    def write(self) -> None:
        self.world.write()

    @rule(which=ANY)
    def renew(self, which: int) -> None:
        self.world.renew(_one(self.world.relays, which))

    @rule(which=ANY)
    def relay(self, which: int) -> None:
        self.world.work(_one(self.world.relays, which))

    @rule(which=ANY)
    def consume(self, which: int) -> None:
        self.world.work(_one(self.world.consumers, which))

    @rule(which=ANY)
    def check(self, which: int) -> None:
        if self.world.checking:
            self.world.work(_one(self.world.checking, which))

    @rule()
    def everybody_works(self) -> None:
        self.world.write()
        for process in self.world.processes:
            self.world.work(process)

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(which=ANY, gracefully=st.booleans())
    def end(self, which: int, gracefully: bool) -> None:
        process = _one(self.world.processes, which)
        if gracefully:
            self.world.stop(process)
        else:
            self.world.kill(process)

    @rule(
        what=st.sampled_from(["reset_offsets", "evict", "switch_broker", "land", "arrive"]),
        which=ANY,
    )
    def disturb_the_servers(self, what: str, which: int) -> None:
        self.schedule.suspended_for = which
        getattr(self.world, what)()

    @rule(places=st.integers(0, 9), fault=st.sampled_from([Fault.ERROR, Fault.LATE, Fault.KILL]))
    def order_a_fault(self, places: int, fault: Fault) -> None:
        self.schedule.arm(places, fault)

    @rule(places=st.integers(0, 9), steps=STEPS)
    def order_a_suspension(self, places: int, steps: list[tuple[str, int]]) -> None:
        self.schedule.arm(places, Fault.STOP)
        self.schedule.suspended_for = len(steps)
        self.meanwhile.extend(steps)

    @rule(trouble=TROUBLE)
    def order_trouble(self, trouble: Trouble) -> None:
        self.schedule.troubles.append(trouble)

    def step(self) -> None:
        """Do the step that was requested while a process is suspended."""
        if not self.meanwhile:
            return
        what, which = self.meanwhile.popleft()
        workers = [*self.world.relays, *self.world.consumers, *self.world.checking]
        steps: dict[str, Callable[[], Any]] = {
            "work": lambda: self.world.work(_one(workers, which)),
            "renew": lambda: self.world.renew(_one(self.world.relays, which)),
            "write": self.world.write,
            "wait": lambda: self.world.pass_time(11.0),
        }
        steps[what]()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            found = finish(self.world, purge=False)
            assert not found, found


def test_no_sequence_of_steps_violates_an_invariant() -> None:
    run(Banks, examples=150)


@pytest.mark.selftest
def test_sequence_of_steps_to_a_defect_is_found() -> None:
    with applied("no-dedupe"), pytest.raises(AssertionError, match="I3"):
        # A finding is enough here: a shortest path takes its time.
        run(Banks, examples=500, phases=[Phase.generate])


def run(
    machine: type[RuleBasedStateMachine], *, examples: int, phases: Sequence[Phase] = tuple(Phase)
) -> None:
    chosen = settings(
        max_examples=examples,
        phases=phases,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        database=None,
    )
    with silence():
        run_state_machine_as_test(machine, settings=chosen)


def _one(processes: list[Any], which: int) -> Any:
    return processes[which % len(processes)]
