"""Makes a history: a setting, stories that are healthy, broken and damaged, and purges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tests.verification.oracle.ahead import AHEAD
from tests.verification.oracle.broken import BROKEN
from tests.verification.oracle.damaged import DAMAGED
from tests.verification.oracle.foreign_sources import OF_FOREIGN_SOURCES
from tests.verification.oracle.healthy import HEALTHY, happens_at_once, refused
from tests.verification.oracle.history import History
from tests.verification.oracle.key_stories import OF_KEYS
from tests.verification.oracle.odd_names import ODD_AND_BROKEN, ODD_NAMES
from tests.verification.oracle.own_groups import OWN_DAMAGED, OWN_IN_ORDER
from tests.verification.oracle.parked_events import PARKED_EVENTS
from tests.verification.oracle.restores import QUICK, carry_out, database_is_restored
from tests.verification.oracle.setting import a_setting
from tests.verification.oracle.timeline import Life
from tests.verification.oracle.topic_layout import laid_out
from tests.verification.oracle.topic_stories import (
    DAMAGED_ON_TOPICS,
    HEALTHY_ON_TOPICS,
    ON_TOPICS,
    keys_are_used_for_days,
)
from tests.verification.oracle.unhandled import UNHANDLED

Story = Callable[[History], None]
IN_ORDER: Final[Sequence[Story]] = (*HEALTHY, *OWN_IN_ORDER, *HEALTHY_ON_TOPICS, *ODD_NAMES)
STORIES: Final[Sequence[Story]] = (
    *(*IN_ORDER, *UNHANDLED, *AHEAD, *OF_FOREIGN_SOURCES, *BROKEN, *OF_KEYS, *ODD_AND_BROKEN),
    *(*DAMAGED, *OWN_DAMAGED, *DAMAGED_ON_TOPICS, *PARKED_EVENTS, database_is_restored),
)
PART_SEEN_ONCE: Final = 0.7
"""Share of the histories in which past receipts define the expectations."""
PART_PURGED: Final = 0.5
"""Share of those in which only the first run sees these receipts."""
PART_WITH_TOPICS: Final = 0.25
"""Share of the histories without stories about topics."""


def a_history(
    r: Random,
    *,
    stories: Sequence[Story] = (),
    most_stories: int = 8,
    most_services: int = 4,
) -> History:
    """Choose a setting and its stories; without `stories`, a third of them are healthy ones."""
    history = History(setting=a_setting(r, most_services=most_services), random=r)
    seen_once = _keep_routes_alive(history)
    stories = stories or r.choice((IN_ORDER, STORIES, STORIES))
    told = [r.choice(stories) for _ in range(r.randint(1, most_stories))]
    if database_is_restored in told:
        # A backup with half of a story would make another story.
        told = [database_is_restored, *(story for story in told if story in QUICK)]
    reads_topics = any(story in ON_TOPICS for story in told) or r.random() < PART_WITH_TOPICS
    for story in (*told, *[keys_are_used_for_days] * (2 * reads_topics)):
        story(history)
    carry_out(history)
    history.purge()
    if not reads_topics and r.random() < PART_PURGED:
        # A topic would show that the rows were there.
        for life in seen_once:
            life.gone_at = history.setting.nights[0].at + 1
    if reads_topics:
        history.topics = laid_out(history)
    return history


def _keep_routes_alive(h: History) -> list[Life]:
    """Before each night, send each type to each group, and let each service give it up.

    Return the rows that only the first run needs to see.

    A configuration that names a type without any event is mistyped. Without a configuration, a
    group is expected to have what it has had before, even if it has purged all of it.
    """
    setting = h.setting
    seen_once: list[Life] = []
    is_seen_once = not setting.declared and h.random.random() < PART_SEEN_ONCE
    for night in setting.nights:
        if is_seen_once and night != setting.nights[0] and not night.renamed_service:
            continue
        at = int(night.at) - 120
        for event_type in sorted({each for group in setting.groups for each in group.types}):
            receivers = setting.receivers(event_type)
            happens_at_once(h, at, event_type, receivers)
            if setting.is_left_to_the_past(event_type):
                for service in sorted({group.service for group in receivers}):
                    refusing = [group for group in receivers if group.service == service]
                    refused(h, at, event_type, refusing[:1])
        if is_seen_once and night == setting.nights[0]:
            seen_once = list(h.lives)
    return seen_once
