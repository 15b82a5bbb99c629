"""The events that groups gave up because of a defect, apart from those that handlers refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self
from uuid import UUID

from shieldtx.app.application import ShieldTx
from shieldtx.consumer.failure_kinds import is_refusal
from shieldtx.hooks.contexts import ConsumeContext
from shieldtx.ports.inbox import AttemptOutcome
from shieldtx.testing.event_rows import given_up_in
from shieldtx.testing.outcome import EventRow


class Defects:
    """Notes why events of one service are given up: their rows do not show it.

    Refused events and events with a defect are MAX_RECONSUMED alike. Only the error of the last
    attempt, and the retry policy of its handler, tell them apart.
    """

    def __init__(self, shield: ShieldTx) -> None:
        self._shield = shield
        self._given_up: set[tuple[UUID, str, str]] = set()
        """The event's id and source, and the group."""

    @classmethod
    @contextmanager
    def of(cls, shield: ShieldTx) -> Iterator[Self]:
        """Note the given-up events of a service during the block."""
        defects = cls(shield)
        with shield.hooks.observing_failures(defects.note):
            yield defects

    def note(self, context: ConsumeContext) -> None:
        """Note the event of a failed attempt, if it is given up and its handler did not refuse."""
        if context.outcome is AttemptOutcome.REFUSED and not self._is_refusal(context):
            self._given_up.add((context.event_id, context.source, context.group))

    def rows(self) -> list[EventRow]:
        """Return the rows of the noted events that are given up."""
        return list(given_up_in(self._shield, self._given_up)) if self._given_up else []

    def _is_refusal(self, context: ConsumeContext) -> bool:
        handler = self._shield.groups[context.group].handler_of(context.type, context.kind)
        error = context.exception
        return handler is not None and isinstance(error, Exception) and is_refusal(error, handler)
