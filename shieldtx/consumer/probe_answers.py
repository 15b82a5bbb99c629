"""What the attempts of probes show about their handlers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from shieldtx.domain.events import Envelope


@dataclass(kw_only=True, slots=True)
class ProbeAnswer:
    """What a probe has shown; neither, where the handler was not called."""

    handler_works: bool = False
    """The handler has succeeded, or has raised an error that its retry policy declares."""
    failure: str | None = None
    """Why the attempt failed; None for an error of the database that concerns no event."""


class ProbeAnswers:
    """The answers of the probes in progress, by their events. Safe for any number of threads."""

    def __init__(self) -> None:
        self._open: dict[tuple[UUID, str], ProbeAnswer] = {}

    @contextmanager
    def opened(self, envelope: Envelope) -> Iterator[ProbeAnswer]:
        """Yield the answer of a probe, which the attempt at this event gives during the block."""
        key = envelope.id, envelope.source
        answer = self._open[key] = ProbeAnswer()
        try:
            yield answer
        finally:
            del self._open[key]

    def works(self, envelope: Envelope) -> None:
        """Note that the handler of an event works, if the attempt is a probe."""
        if self._open and (answer := self._open.get((envelope.id, envelope.source))):
            answer.handler_works = True

    def fails(self, envelope: Envelope, reason: str) -> None:
        """Note why the attempt at an event failed, if it is a probe."""
        if (answer := self._open.get((envelope.id, envelope.source))) is not None:
            answer.failure = reason
