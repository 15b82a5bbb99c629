"""The port of a consumer to the metrics of its process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import Attempt, AttemptOutcome


class AttemptMeter(Protocol):
    """Counts attempts; threads may share it."""

    def called(self, event: Envelope, *, took: float, error: BaseException | None = None) -> None:
        """Count one call of a handler that took so many seconds, with the error that it raised.

        `event` is the attempt's, the first one where the handler takes a list.
        """
        ...

    def ended(self, attempts: Sequence[Attempt], outcome: AttemptOutcome) -> None:
        """Count attempts whose outcome is committed."""
        ...
