"""Topics that are deleted and made anew: the name is the same, and no offset means what it did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event
from typing import Any, Final
from uuid import UUID

_PAUSE_S: Final = 0.5
_ANSWER_S: Final = 1.0


class TopicIdentities:
    """Which topics behind their names a member of a group reads.

    Its client reads on from where it was in the former topic, over all that lies before that place
    in the new one, though it has been told of the change (kafka-python 3.0.12).
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics
        self._known: dict[str, UUID] = {}
        self._asked_at = time.monotonic()

    def look(self, cluster: Any) -> None:
        """Have the client ask for the topics if it was left alone for a while: see `recreated`.

        Otherwise the broker's answers to its fetches tell it when a topic goes.
        """
        now = time.monotonic()
        if now - self._asked_at > _PAUSE_S:
            answered = Event()
            cluster.request_update().add_both(lambda _: answered.set())
            answered.wait(_ANSWER_S)

    def recreated(self, cluster: Any) -> set[str]:
        """Return the topics that are not those of the last call; a missing one stays what it is."""
        self._asked_at = time.monotonic()
        now = {topic: cluster.topic_id(topic) for topic in self._topics}
        there = {topic: identity for topic, identity in now.items() if identity is not None}
        anew = {t for t, identity in there.items() if self._known.get(t, identity) != identity}
        self._known |= there
        return anew
