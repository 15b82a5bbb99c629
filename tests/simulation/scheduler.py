"""One schedule: a world of a shape drawn from a seed, and what happens in it, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from tests.simulation.banks import Transfer
from tests.simulation.checker import Violation, violations
from tests.simulation.fates import SeededFates
from tests.simulation.world import Shape, World

_HASTE = 9_973
"""Keeps the numbers that draw the shape apart from those that draw the faults."""


def play(seed: int, trace: list[str] | None = None) -> Sequence[Violation]:
    """Run the schedule of a seed to its end, and return what it violated."""
    draw = random.Random(seed * _HASTE + 1)
    world = World(shape_of(draw), SeededFates(seed), trace=trace)
    steps = _steps(world, draw)
    count = len(steps)

    def next_step() -> None:
        steps[int(draw.random() * count)]()

    world.next_step = next_step
    for relay in world.relays:
        world.renew(relay)
    for _ in range(draw.randint(20, 50)):
        next_step()
    return finish(world, keep_house=draw.random() < 0.25)


def finish(world: World, *, keep_house: bool) -> Sequence[Violation]:
    """Heal and drain a world, and return what it violated."""
    world.heal()
    is_drained = world.drain()
    found = violations(world, is_drained=is_drained)
    if keep_house and not found:
        world.keep_house()
        found = violations(world, is_drained=is_drained, is_purged=True)
    return found


def shape_of(draw: random.Random) -> Shape:
    """Draw the size of a world."""
    r = draw.random
    keys = ("k", "l", None) if r() < 0.2 else ("k", "l") if r() < 0.5 else ("k",)
    has_fraud_group = r() < 0.2
    refusals = draw.choice((0.0, 0.3, 0.6))
    failures = draw.choice((0.0, 0.0, 0.5))
    transfers = tuple(
        Transfer(
            number=n,
            key=draw.choice(keys),
            amount=2**n,
            is_committed=r() > 0.1,
            delay=3.0 if r() < 0.05 else 0.0,
            failures=draw.randint(1, 3) if r() < failures else 0,
            is_refused=r() < refusals,
            is_fraud=has_fraud_group and r() < 0.5,
            refund_failures=draw.randint(1, 3) if r() < failures * 0.5 else 0,
        )
        for n in range(draw.randint(2, 6))
    )
    clocks_are_wrong = r() < 0.3
    return Shape(
        transfers=transfers,
        relays=2 if r() < 0.8 else 3,
        consumers=2,
        shards=draw.randint(1, 3),
        partitions=draw.randint(1, 2),
        relay_batch=draw.choice((1, 4, 8, 40)),
        consumer_batch=draw.choice((1, 2, 10)),
        attempts=draw.randint(1, 3),
        has_fraud_group=has_fraud_group,
        rates=(1.0, 0.7, 1.4) if clocks_are_wrong else (1.0,),
        skews=(0.0, 3600.0, -3600.0) if clocks_are_wrong else (0.0,),
    )


def _steps(world: World, draw: random.Random) -> list[Callable[[], object]]:
    """List what may happen next, as often as its weight."""
    steps: list[Callable[[], object]] = [world.write] * (3 * len(world.transfers))
    for relay in world.relays:
        steps += [partial(world.work, relay)] * 4 + [partial(world.renew, relay)] * 2
    for consumer in world.consumers:
        steps += [partial(world.work, consumer)] * 4
    for housekeeper in world.housekeepers:
        steps.append(partial(world.work, housekeeper))
    for seconds in (0.5, 2.0, 2.0, 4.0, 11.0):
        steps.append(partial(world.pass_time, seconds))
    if draw.random() < 0.5:
        steps += [partial(world.kill, process) for process in world.processes]
        steps += [partial(world.stop, process) for process in world.relays]
    if draw.random() < 0.5:
        steps += [world.evict, world.reset_offsets]
    if draw.random() < 0.3:
        steps += [world.switch_broker] * 2
    steps.append(world.land)
    return steps
