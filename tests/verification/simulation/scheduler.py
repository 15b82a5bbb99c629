"""One schedule: a world of a config drawn from a seed, and its steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from tests.verification.simulation import parked_events, recovery
from tests.verification.simulation.checker import Violation, violations
from tests.verification.simulation.fault_schedule import SeededFaultSchedule
from tests.verification.simulation.world import World
from tests.verification.simulation.world_config import (
    config_of,
    with_breaker,
    with_early_takeovers,
    with_half_messages,
    with_lanes,
    with_parked_events,
    with_removed_type,
    with_second_source,
    with_shard_settings,
    with_variety,
)

_APART = 9_973
"""Separates the seeds that draw the config from those that draw the faults."""


def play(seed: int, trace: list[str] | None = None) -> Sequence[Violation]:
    """Run the schedule of a seed completely, and return its violations."""
    draw = random.Random(seed * _APART + 1)
    # Drawn separately, so that the other worlds do not depend on them.
    config = with_half_messages(config_of(draw), random.Random(seed * _APART + 2))
    config = with_variety(config, random.Random(seed * _APART + 3))
    config = with_second_source(config, random.Random(seed * _APART + 4))
    config = with_removed_type(config, random.Random(seed * _APART + 5))
    config = with_shard_settings(config, random.Random(seed * _APART + 6))
    config = with_lanes(config, random.Random(seed * _APART + 7))
    config = with_early_takeovers(config, random.Random(seed * _APART + 9))
    config = with_breaker(config, random.Random(seed * _APART + 8))
    config = with_parked_events(config, random.Random(seed * _APART + 10))
    schedule = SeededFaultSchedule(seed, sleepy=config.has_threads)
    world = World(config, schedule, trace=trace)
    steps = _steps(world, draw)
    count = len(steps)

    def next_step() -> None:
        steps[int(draw.random() * count)]()

    world.next_step = next_step
    for relay in world.relays:
        world.renew(relay)
    for _ in range(draw.randint(20, 50)):
        next_step()
    return finish(world, purge=draw.random() < 0.25)


def finish(world: World, *, purge: bool) -> Sequence[Violation]:
    """Heal and drain a world, and return its violations."""
    recovery.heal(world)
    if world.threads is not None:
        world.threads.close()
    is_drained = recovery.drain(world)
    found = violations(world, is_drained=is_drained)
    if purge and not found:
        recovery.purge(world)
        found = violations(world, is_drained=is_drained, is_purged=True)
    return found


def _steps(world: World, draw: random.Random) -> list[Callable[[], object]]:
    """List the possible next steps, each as often as its weight."""
    steps: list[Callable[[], object]] = [world.write] * (3 * len(world.transfers))
    steps += [world.second.write] * (3 * len(world.config.notices))
    for relay in world.relays:
        steps += [partial(world.work, relay)] * 4 + [partial(world.renew, relay)] * 2
    for consumer in world.consumers:
        steps += [partial(world.work, consumer)] * 4
    for retention in world.retentions:
        steps.append(partial(world.work, retention))
    for process in world.checking:
        steps += [partial(world.work, process)] * 3
    for seconds in (0.5, 2.0, 2.0, 4.0, 11.0):
        steps.append(partial(world.pass_time, seconds))
    if draw.random() < 0.5:
        steps += [partial(world.kill, process) for process in world.processes]
        steps += [partial(world.stop, process) for process in (*world.relays, *world.consumers)]
    if draw.random() < 0.5:
        steps += [world.evict, world.reset_offsets]
    if draw.random() < 0.3:
        steps += [world.switch_broker] * 2
    steps.append(world.land)
    steps += [partial(parked_events.decide, world)] * (2 * world.config.parks)
    if world.threads is not None:
        steps += [world.let_leases_lapse] * 4
        steps += [world.wake] * (len(steps) // 8)
    return steps
