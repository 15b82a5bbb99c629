"""Stories of keys of which a group lacks an event, so that a repair has an order to keep."""

from __future__ import annotations

from typing import Final

from tests.verification.oracle.healthy import applied_at_once, some_time, some_type
from tests.verification.oracle.history import History

_SECONDS: Final = 1 / 60
_STEPS: Final = (2 * _SECONDS, 6 * _SECONDS)
"""Minutes by which a clock goes back: less than the permitted clock difference."""


def record_is_lost_where_a_clock_went_back(h: History) -> None:
    """By their times, the second event of a key was written before the first; a group lacks one."""
    event_type, groups = some_type(h)
    lacking = h.random.choice(groups)
    at, key = some_time(h), h.new_key()
    # The second event has overtaken the first, but not the other way round.
    lost = h.random.choice((0, 1))
    for number, written_at in enumerate((at + h.random.choice(_STEPS), at)):
        event = h.written(event_type, at, key=key, created_at=written_at)
        h.sent(event, at + 1)
        if number == lost:
            h.lacks(event, lacking, since=at + 1)
        having = [group for group in groups if number != lost or group != lacking]
        applied_at_once(h, event, having, at + 1)


def latest_record_of_a_key_is_lost(h: History) -> None:
    """A group lacks the latest event of a key, so that nothing has overtaken it yet."""
    event_type, groups = some_type(h)
    lacking = h.random.choice(groups)
    at, key = some_time(h), h.new_key()
    for number in range(2):
        event = h.written(event_type, at + number, key=key)
        h.sent(event, at + number)
        if number:
            h.lacks(event, lacking, since=at + number)
        having = [group for group in groups if number == 0 or group != lacking]
        applied_at_once(h, event, having, at + number)


def records_of_a_key_are_lost_for_groups(h: History) -> None:
    """Some groups lack the same two events of a key, and have no later one."""
    event_type, groups = some_type(h)
    lacking = h.random.sample(groups, h.random.randint(min(2, len(groups)), len(groups)))
    at, key = some_time(h), h.new_key()
    for number in range(2):
        event = h.written(event_type, at + number, key=key)
        h.sent(event, at + number)
        for group in lacking:
            h.lacks(event, group, since=at + number)
        applied_at_once(h, event, [g for g in groups if g not in lacking], at + number)


def record_is_lost_after_a_change_of_name(h: History) -> None:
    """The service wrote the first event of a key under another name; a group lacks the second.

    The group received the first one or lacks it too: no run judges that, and no order binds the
    two.
    """
    event_type, groups = some_type(h)
    lacking = h.random.choice(groups)
    at, key = some_time(h), h.new_key()
    former = h.written(event_type, at, key=key)
    former.source = f"{former.service}-before"
    h.sent(former, at)
    having = [group for group in groups if group != lacking or h.random.random() < 0.5]
    for group in having:
        h.applied(h.received(former, group, at), at)
    event = h.written(event_type, at + 1, key=key)
    h.sent(event, at + 1)
    h.lacks(event, lacking, since=at + 1)
    applied_at_once(h, event, [group for group in groups if group != lacking], at + 1)


OF_KEYS: Final = (record_is_lost_where_a_clock_went_back, latest_record_of_a_key_is_lost)
