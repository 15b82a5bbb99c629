"""The port of a consumer to the paused handlers of its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind

HandlerKey: TypeAlias = tuple[str, TxKind]
"""The event type and the kind of a handler's events."""

ALL: Final = "*"
"""In place of an event type or a kind: all of the group, also those declared later."""

BREAKER: Final = "breaker"
"""Who has paused a handler, where no operator has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """A pause of one handler, or of several: no attempt at their events is started."""

    event_type: str
    """An event type, or ALL."""
    kind: str
    """A kind, or ALL."""
    since: datetime
    by: str
    """An operator, or BREAKER."""
    reason: str
    has_probes: bool
    """Whether a successful probe ends the pause; else only an operator does."""
    is_probe_due: bool = False
    probes: int = 0
    """How many probes have begun, and reached the handler or died."""

    def covers(self, handler: HandlerKey) -> bool:
        """Whether the handler of this type and kind is paused."""
        return self.event_type in {handler[0], ALL} and self.kind in {handler[1].value, ALL}


def is_covered(pauses: Sequence[Pause], handler: HandlerKey) -> bool:
    """Whether one of these pauses covers a handler."""
    return any(pause.covers(handler) for pause in pauses)


def handler_key_of(envelope: Envelope) -> HandlerKey:
    """Return the type and the kind of an event."""
    return envelope.type, envelope.kind


class ProbeClaim(NamedTuple):
    """The right of one worker to probe a paused handler, fenced by its token."""

    group: str
    handler: HandlerKey
    token: UUID
    number: int
    """1 for the first probe of the pause."""


class PauseStore(Protocol):
    """The port of a consumer to the table of paused handlers; times are the database's."""

    def pauses(self, group: str) -> Sequence[Pause]:
        """Return the pauses of a group."""
        ...

    def trip(self, group: str, handler: HandlerKey, *, reason: str, first_probe: timedelta) -> bool:
        """Pause a handler, and plan its first probe; False if it is paused already."""
        ...

    def waiting(self, group: str, handler: HandlerKey) -> int:
        """Count the unfinished events of a handler."""
        ...

    def has_succeeded(self, group: str, handler: HandlerKey, *, within: timedelta) -> bool:
        """Whether any worker has applied an event of a handler within this time."""
        ...

    def claim_probe(
        self, group: str, handler: HandlerKey, *, timeout: timedelta
    ) -> ProbeClaim | None:
        """Claim the due probe of a paused handler; None if none is due any more.

        After `timeout` the next probe is due, if the claim is not settled.
        """
        ...

    def settle_probe(self, claim: ProbeClaim, *, delay: timedelta, reason: str | None) -> bool:
        """Plan the next probe, and record why this one failed; False if the claim is lost.

        A probe without a `reason` has not reached the handler: it does not count.
        """
        ...

    def close(self, claim: ProbeClaim) -> bool:
        """End the pause after a successful probe; False if the claim is lost."""
        ...
