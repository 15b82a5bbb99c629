"""Stories of events that a relay has left PROCESSING, and that must not be sent again."""

from __future__ import annotations

from typing import Final

from shieldtx.domain.states import OutboxStatus
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.broken import nobody_notes_that_it_was_sent
from tests.verification.oracle.healthy import returned, some_time, some_type
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import undo_of
from tests.verification.oracle.timeline import DAY

_STANDS_FOR: Final = 10 * DAY
"""Longer than any retention, with the duration of a purge."""


def relay_is_gone_for_longer_than_rows_are_kept(h: History) -> None:
    """Groups have applied an event that its relay has left PROCESSING, and may have purged it."""
    event_type, groups = some_type(h)
    at = max(int(h.setting.nights[-1].at) - _STANDS_FOR, 1)
    event = h.written(event_type, at)
    event.becomes(OutboxStatus.PROCESSING, at, attempts=1, lease_until=at + 2)
    for group in groups:
        arrival = h.received(event, group, at + 1)
        h.applied(arrival, at + 2)
        h.say(Verdict.STUCK, event, group, since=at + 2, moved=at + 2, arrival=arrival)


def is_taken_back_while_a_relay_is_gone(h: History) -> None:
    """A group gives up an event that its relay has left PROCESSING; another one lacks it."""
    event_type, groups = some_type(h)
    refusing, *lacking = h.random.sample(groups, len(groups))
    if any(g.name == undo_of(g.service) or event_type in g.undoes for g in lacking):
        # The rollback would leave a tombstone there, which refuses the event.
        nobody_notes_that_it_was_sent(h)
        return
    at = some_time(h)
    event = h.written(event_type, at)
    event.becomes(OutboxStatus.PROCESSING, at, attempts=1, lease_until=at + 2)
    arrival = h.received(event, refusing, at + 1)
    rollback = h.gave_up(arrival, at + 2)
    h.say(Verdict.STUCK, event, refusing, since=at + 2, moved=at + 2, arrival=arrival)
    h.waits(event, lacking)
    returned(h, rollback, at + 2)


def relay_is_gone_and_no_row_says_that_it_was_sent(h: History) -> None:
    """A relay has left an event PROCESSING, and no group has it, or a row of it any more."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at)
    event.becomes(OutboxStatus.PROCESSING, at, attempts=1, lease_until=at + 2)
    h.waits(event, groups)


OF_RELEASES: Final = (
    relay_is_gone_and_no_row_says_that_it_was_sent,
    relay_is_gone_for_longer_than_rows_are_kept,
    is_taken_back_while_a_relay_is_gone,
)
