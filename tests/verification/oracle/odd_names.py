"""Unusual event types that some writer may choose."""

from __future__ import annotations

from typing import Final

from tests.verification.oracle.healthy import applied_at_once, is_applied, some_time
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import ESCAPES_AS_OF_OLD, Group

_ENDINGS: Final = ("\\", "\\'", "'\\", "'", '"', "%", "{}")
"""Endings that a literal, a pattern or a template of SQL may misread."""


def type_ends_in_a_backslash(h: History) -> None:
    """An event has such a type: the groups that are declared by their topics alone apply it."""
    by_topics = _unfiltered(h)
    if not by_topics:
        is_applied(h)
        return
    first = h.random.choice(by_topics)
    event_type = f"{h.random.choice(first.upstreams)}.odd\\"
    at = some_time(h)
    event = h.written(event_type, at)
    h.sent(event, at)
    applied_at_once(h, event, _groups_for(h, event_type), at)


def record_of_an_odd_type_is_lost(h: History) -> None:
    """Of two events with an odd type, a group lacks the second one.

    A run reads the rows of a type by its name if one of them has a mismatch. Usually this happens
    in the database that takes a backslash in a literal for an escape.
    """
    pairs = [(group, upstream) for group in _unfiltered(h) for upstream in group.upstreams]
    if not pairs:
        is_applied(h)
        return
    old = [(group, upstream) for group, upstream in pairs if _reads_of_old(group, upstream)]
    lacking, upstream = h.random.choice(old or pairs)
    event_type = f"{upstream}.odd{h.random.choice(_ENDINGS)}"
    at = some_time(h)
    for number in range(2):
        event = h.written(event_type, at + number)
        h.sent(event, at + number)
        groups = _groups_for(h, event_type)
        if number:
            # An undeclared group is expected to have what it has had before.
            h.lacks(event, lacking, since=at + number)
            groups.remove(lacking)
        applied_at_once(h, event, groups, at + number)


def _unfiltered(h: History) -> list[Group]:
    return [group for group in h.setting.groups if not group.filtered]


def _groups_for(h: History, event_type: str) -> list[Group]:
    return [group for group in h.setting.groups if group.is_for(event_type)]


def _reads_of_old(group: Group, upstream: str) -> bool:
    return ESCAPES_AS_OF_OLD in {group.service, upstream}


ODD_NAMES: Final = (type_ends_in_a_backslash,)
ODD_AND_BROKEN: Final = (record_of_an_odd_type_is_lost,)
