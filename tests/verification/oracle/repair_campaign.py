"""Many repairs of nights of histories, and their outcomes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from shieldtx.embedded import EmbeddedPostgres
from tests.spark.planting import Service
from tests.support.migrated_databases import MigratedDatabases
from tests.verification.oracle.broken import records_of_a_key_are_lost
from tests.verification.oracle.generate import STORIES, Story, a_history
from tests.verification.oracle.key_stories import (
    record_is_lost_after_a_change_of_name,
    records_of_a_key_are_lost_for_groups,
)
from tests.verification.oracle.nights import mismatches
from tests.verification.oracle.odd_names import ODD_AND_BROKEN
from tests.verification.oracle.release_stories import OF_RELEASES
from tests.verification.oracle.repairs import Repaired, RepairedNight
from tests.verification.oracle.spark_world import four_services

_OFTEN: Final = 6
_STORIES: Final[Sequence[Story]] = (
    # No handler can be declared for such a type.
    *(story for story in STORIES if story not in ODD_AND_BROKEN),
    *[records_of_a_key_are_lost] * _OFTEN,
    records_of_a_key_are_lost_for_groups,
    *OF_RELEASES,
    record_is_lost_after_a_change_of_name,
)
"""Stories about the order of a key, which a repair can damage."""


@dataclass(kw_only=True, slots=True)
class RepairTally:
    """The outcomes of repairs, in numbers."""

    repairs: int = 0
    deaths: int = 0
    """How often a repair was ended, at each of its steps, and restarted."""
    found: int = 0
    """Mismatches before."""
    left: int = 0
    """Of them, the remaining ones: an operator's work."""
    wrong: dict[int, list[str]] = field(default_factory=dict)
    """By seed."""

    def note(self, seed: int, repaired: Repaired) -> None:
        """Count a repair."""
        before, after = mismatches(repaired.before), mismatches(repaired.after)
        self.repairs += 1
        self.deaths += repaired.steps
        self.found += len(before)
        self.left += len(before & after)
        if repaired.wrong:
            self.wrong[seed] = repaired.wrong

    @property
    def is_right(self) -> bool:
        """Return whether nothing was changed, applied or left against the rules."""
        return not self.wrong

    def as_json(self) -> dict[str, Any]:
        """Return the counts for a report."""
        counts = ("repairs", "deaths", "found", "left")
        return {name: getattr(self, name) for name in counts} | {"wrong": len(self.wrong)}

    def __str__(self) -> str:
        return (
            f"{self.repairs:,} repairs, ended at {self.deaths:,} steps and begun again: of "
            f"{self.found:,} mismatches {self.left:,} are left to an operator; {len(self.wrong)} "
            "repairs with something wrong"
        )


@contextmanager
def services() -> Iterator[Mapping[str, Service]]:
    """Start a PostgreSQL with the databases of the four services."""
    with ExitStack() as open_:
        postgres = open_.enter_context(EmbeddedPostgres(fsync=False))
        open_.enter_context(_quiet())
        yield open_.enter_context(four_services(MigratedDatabases(postgres)))


def run(
    services: Mapping[str, Service],
    seeds: Iterable[int],
    *,
    progress: Callable[[RepairTally], None] = lambda _: None,
) -> RepairTally:
    """Repair one night of each history."""
    tally = RepairTally()
    for seed in seeds:
        tally.note(seed, _repaired(services, seed, ()))
        progress(tally)
    return tally


def search(
    services: Mapping[str, Service], seeds: Iterable[int], *, stories: Sequence[Story] = ()
) -> int | None:
    """Return after how many repairs something is wrong; None: nothing is."""
    for number, seed in enumerate(seeds, start=1):
        if _repaired(services, seed, stories).wrong:
            return number
    return None


def _repaired(services: Mapping[str, Service], seed: int, stories: Sequence[Story]) -> Repaired:
    history = a_history(Random(seed), stories=stories or _STORIES)
    night = history.random.choice(history.setting.nights).as_named
    return RepairedNight(history=history, night=night, services=services).run()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log of workers about the failures in a history."""
    log = logging.getLogger("shieldtx")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
