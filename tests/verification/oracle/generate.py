"""Makes a history: a setting, stories that are healthy, broken and damaged, and purges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tests.verification.oracle.broken import BROKEN
from tests.verification.oracle.damaged import DAMAGED
from tests.verification.oracle.healthy import HEALTHY, happens_at_once, refused
from tests.verification.oracle.history import History
from tests.verification.oracle.key_stories import OF_KEYS
from tests.verification.oracle.odd_names import ODD_AND_BROKEN, ODD_NAMES
from tests.verification.oracle.own_groups import OWN_DAMAGED, OWN_IN_ORDER
from tests.verification.oracle.restores import QUICK, carry_out, database_is_restored
from tests.verification.oracle.setting import a_setting
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
    *(*IN_ORDER, *UNHANDLED, *BROKEN, *OF_KEYS, *ODD_AND_BROKEN),
    *(*DAMAGED, *OWN_DAMAGED, *DAMAGED_ON_TOPICS, database_is_restored),
)
PART_WITH_TOPICS: Final = 0.25
"""Of the histories that tell nothing of topics."""


def a_history(
    r: Random,
    *,
    stories: Sequence[Story] = (),
    most_stories: int = 8,
    most_services: int = 4,
) -> History:
    """Choose a setting and what happens in it; without `stories`, a third is of healthy ones."""
    history = History(setting=a_setting(r, most_services=most_services), random=r)
    _keep_routes_alive(history)
    stories = stories or r.choice((IN_ORDER, STORIES, STORIES))
    told = [r.choice(stories) for _ in range(r.randint(1, most_stories))]
    if database_is_restored in told:
        # A backup that has the half of a story is another story.
        told = [database_is_restored, *(story for story in told if story in QUICK)]
    reads_topics = any(story in ON_TOPICS for story in told) or r.random() < PART_WITH_TOPICS
    for story in (*told, *[keys_are_used_for_days] * (2 * reads_topics)):
        story(history)
    carry_out(history)
    history.purge()
    if reads_topics:
        history.topics = laid_out(history)
    return history


def _keep_routes_alive(h: History) -> None:
    """Before each night, let each type be sent to each group, and be given up by each service.

    A configuration that names what was never sent is one with a mistyped name, and without one a
    group is expected to have what it has had before.
    """
    setting = h.setting
    for night in setting.nights:
        at = int(night.at) - 120
        for event_type in sorted({each for group in setting.groups for each in group.types}):
            receivers = setting.receivers(event_type)
            happens_at_once(h, at, event_type, receivers)
            if setting.is_left_to_the_past(event_type):
                for service in sorted({group.service for group in receivers}):
                    refusing = [group for group in receivers if group.service == service]
                    refused(h, at, event_type, refusing[:1])
