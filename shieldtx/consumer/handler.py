"""A handler of a consumer group, and its options."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from shieldtx.domain.event_types import checked_name
from shieldtx.domain.events import Envelope, is_foreign
from shieldtx.domain.retry import LONGEST_WAIT, RetryPolicy
from shieldtx.domain.schema_versions import Upcasters
from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError, NotAuthorised


@dataclass(frozen=True, kw_only=True, slots=True)
class Handler:
    """A handler and its options."""

    function: Callable[[Session, Any], Any]
    topic: str
    """The logical topic of its events."""
    payload: TypeAdapter[Any]
    upcasters: Upcasters = field(default_factory=Upcasters)
    version: int | None = None
    """The version of its payloads; None: the newest that the upcasters make."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    lease: timedelta = timedelta(minutes=1)
    """The maximum duration of one attempt; then another worker may take the event over."""
    authorised: frozenset[str] | None = None
    """The sources whose events the handler receives; None: all sources."""
    alone: bool = False
    """Whether each of its events gets a transaction of its own."""
    takes_list: bool = False
    """Whether the handler takes a list of events."""
    is_coroutine: bool = False
    """Whether the function is a coroutine function, which takes an AsyncSession."""

    @property
    def parks(self) -> bool:
        """Whether its events are parked when their attempts are used up, and not rolled back."""
        if self.retry.then is None:
            return is_foreign(self.topic)
        return self.retry.then == "park"

    def shares_transactions(self, kind: TxKind) -> bool:
        """Whether first attempts at events of this kind may share a transaction with others."""
        return kind is TxKind.COMMIT and not self.alone

    def check_authority(self, envelope: Envelope) -> None:
        """Raise NotAuthorised for an event of a source that this handler does not accept."""
        if self.authorised is not None and envelope.source not in self.authorised:
            raise NotAuthorised(
                f"ce_source: a source of {len(envelope.source)} characters is not authorised to "
                f"send a {envelope.kind} of {envelope.type!r}, only "
                f"{', '.join(sorted(self.authorised))}"
            )


def authorised_sources(names: Collection[str] | None, *, of: str) -> frozenset[str] | None:
    """Return checked names of sources; raises ConfigurationError for something else."""
    if names is None:
        return None
    if isinstance(names, str) or not names:
        raise ConfigurationError(
            f"compensation of {of!r}: authorised must name sources, such as ('stock',), "
            f"not {names!r}"
        )
    return frozenset(checked_name("source", name) for name in names)


def checked_lease(lease: object, event_type: str) -> timedelta:
    """Return a lease; raises ConfigurationError for one that is no time above 0."""
    if not isinstance(lease, timedelta) or not timedelta(0) < lease <= LONGEST_WAIT:
        raise ConfigurationError(
            f"handler of {event_type!r}: lease must be a timedelta above 0 and up to "
            f"{LONGEST_WAIT.days} days, not {lease!r}"
        )
    return lease
