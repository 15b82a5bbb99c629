"""The handler calls that a batch needs, and their failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from sqlalchemy.orm import Session

from shieldtx.consumer.failures import may_concern_no_event
from shieldtx.consumer.handler import Handler
from shieldtx.consumer.handler_caller import HandlerCaller, UnfitPayload, opened
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.events import Event
from shieldtx.errors import UnknownSchemaVersion, UpcastFailed
from shieldtx.ports.inbox import Attempt

Call: TypeAlias = tuple[int, Sequence[Attempt], Handler]
"""Position of the call's first attempt, its attempts, its handler; a tuple: made for each event."""


class FailedCall(Exception):
    """The call for `count` attempts, from position `first` of a transaction, has failed."""

    def __init__(self, first: int, count: int, error: Exception) -> None:
        # The text may be logged as the context of another error: no payload in it.
        super().__init__(type(error).__name__)
        self.first = first
        self.count = count
        self.error = error


class InterruptedCall(BaseException):
    """The call for these attempts ends the process."""

    def __init__(self, attempts: Sequence[Attempt], error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.attempts = attempts
        self.error = error


class BatchCalls:
    """Calls the handlers of one group on the attempts of a transaction."""

    def __init__(self, group: ConsumerGroup, caller: HandlerCaller) -> None:
        self._group = group
        self._caller = caller

    def needed(self, attempts: Sequence[Attempt], first: int, end: int) -> Iterator[Call]:
        """Yield the calls for the attempts from `first` to `end`, with the longest lists."""
        while first < end:
            handler, after = self.handler_of(attempts[first]), first + 1
            if handler.takes_list:
                event_type = attempts[first].envelope.type
                while after < end and attempts[after].envelope.type == event_type:
                    after += 1
            yield first, attempts[first:after], handler
            first = after

    def make(self, call: Call, session: Session) -> None:
        """Make a call; raises FailedCall, InterruptedCall, or an error that concerns no event."""
        first, attempts, handler = call
        try:
            if handler.takes_list:
                events = _opened(first, attempts, handler)
                self._caller.call_with_list(session, handler, events, attempts[0].envelope)
            else:
                self._caller.call(session, handler, attempts[0])
        except Exception as error:
            if isinstance(error, FailedCall) or may_concern_no_event(error):
                raise
            raise FailedCall(first, len(attempts), error) from error
        except BaseException as error:
            raise InterruptedCall(attempts, error) from error

    def handler_of(self, attempt: Attempt) -> Handler:
        """Return the handler of an attempt that was just received."""
        handler = self._group.handler_of(attempt.envelope.type, attempt.envelope.kind)
        if handler is None:
            raise LookupError(f"no handler for {attempt.envelope.type!r}, which was just received")
        return handler


def _opened(first: int, attempts: Sequence[Attempt], handler: Handler) -> list[Event]:
    """Return the events of a call for a list; raises FailedCall for the first unreadable one."""
    events = []
    for position, attempt in enumerate(attempts, first):
        try:
            events.append(opened(handler, attempt.envelope, attempt.number))
        except (UnfitPayload, UnknownSchemaVersion, UpcastFailed) as unread:
            raise FailedCall(position, 1, unread) from unread
    return events
