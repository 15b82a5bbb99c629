"""The started attempts of a batch that must not be made: their key or their handler is blocked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from shieldtx.consumer.breaker import Breaker
from shieldtx.ports.inbox import Attempt

Key: TypeAlias = tuple[str, str | None]
"""A topic and an event's key, which determine the order."""


def key_of(attempt: Attempt) -> Key:
    """Return the key of an attempt's event."""
    return attempt.envelope.topic, attempt.envelope.key


def divided(
    attempts: Sequence[Attempt], blocked: set[Key], breaker: Breaker
) -> tuple[Sequence[Attempt], Sequence[Attempt]]:
    """Return the free attempts and the blocked ones, each in order.

    The event of a paused handler blocks its key too, which is added to `blocked`.
    """
    if not (blocked or breaker.has_pauses):
        return attempts, ()
    free, waiting = [], []
    for attempt in attempts:
        envelope = attempt.envelope
        if breaker.is_paused((envelope.type, envelope.kind)):
            waiting.append(attempt)
            if envelope.key is not None:
                blocked.add(key_of(attempt))
        elif key_of(attempt) in blocked:
            waiting.append(attempt)
        else:
            free.append(attempt)
    return free, waiting
