"""Scenarios of an event, one function each: plants the rows and notes the expected verdicts."""

from __future__ import annotations

from tests.spark.scenarios import (
    contradictory,
    given_up,
    old,
    one_sided,
    strange,
    unfinished,
    young,
)
from tests.spark.scenarios.given_up import compensated
from tests.spark.scenarios.vocabulary import TYPES, Scenario, effect
from tests.spark.world import GROUPS, World

__all__ = ["SCENARIOS", "TYPES", "plant"]

SCENARIOS: tuple[Scenario, ...] = (
    *given_up.SCENARIOS,
    *one_sided.SCENARIOS,
    *contradictory.SCENARIOS,
    *unfinished.SCENARIOS,
    *young.SCENARIOS,
    *old.SCENARIOS,
    *strange.SCENARIOS,
)


def plant(world: World, *, seed: int, events: int) -> None:
    """Plant each scenario, and `events` further events, nearly all of them in order."""
    world.random.seed(seed)
    turns: list[Scenario] = [effect] * events
    turns += SCENARIOS + tuple(world.random.choices(SCENARIOS, k=events // 20))
    world.random.shuffle(turns)
    # Every route has past events, rollbacks too: without named groups, expectations follow from
    # them.
    for type_ in TYPES:
        world.rest(world.event(type_))
        for group in GROUPS:
            if type_ in group.types:
                compensated(world, (type_, group))
    for turn in turns:
        turn(world)
