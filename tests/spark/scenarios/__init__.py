"""What may happen to an event, one function each: it plants the rows and says what they deserve."""

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
    """Plant each scenario, and besides as many events of which nearly all are in order."""
    world.random.seed(seed)
    turns: list[Scenario] = [effect] * events
    turns += SCENARIOS + tuple(world.random.choices(SCENARIOS, k=events // 20))
    world.random.shuffle(turns)
    # Every route has a past, of rollbacks too: where no group is named, it has to speak.
    for type_ in TYPES:
        world.rest(world.event(type_))
        for group in GROUPS:
            if type_ in group.types:
                compensated(world, (type_, group))
    for turn in turns:
        turn(world)
