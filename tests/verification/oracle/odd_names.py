"""Event types that nobody would choose, and that some writer chooses all the same."""

from __future__ import annotations

from tests.verification.oracle.healthy import applied_at_once, some_time
from tests.verification.oracle.history import History


def type_ends_in_a_backslash(h: History) -> None:
    """An event has such a type: the groups that are declared by their topics alone apply it."""
    first = h.random.choice([group for group in h.setting.groups if not group.filtered])
    event_type = f"{h.random.choice(first.upstreams)}.odd\\"
    at = some_time(h)
    event = h.written(event_type, at)
    h.sent(event, at)
    groups = [group for group in h.setting.groups if group.is_for(event_type)]
    applied_at_once(h, event, groups, at)


ODD_NAMES = (type_ends_in_a_backslash,)
