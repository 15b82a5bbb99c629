"""Members of a consumer group whose process has died on this host.

The broker keeps a dead member, and the partitions that it owned, for a session timeout. Each member
has its process in the user data of its subscription, so a restarted worker can remove it earlier.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from shieldtx._process_tokens import has_died, process_token

_MARK: Final = "shieldtx:"
"""The start of user data; ASCII, since the admin client returns them as text."""


@lru_cache(maxsize=1)
def _user_data(pid: int) -> bytes:  # noqa: ARG001  a fork changes it
    """Return the mark of this process; always the same: the broker rebalances if it changes."""
    return f"{_MARK}{process_token().hex}".encode()


def _with_process(subscription: Any) -> Any:
    return ConsumerProtocolSubscription(
        subscription.version, subscription.topics, _user_data(os.getpid())
    )


class _Range(RangePartitionAssignor):
    @classmethod
    def metadata(cls, topics: Iterable[str]) -> Any:
        return _with_process(super().metadata(topics))  # type: ignore[no-untyped-call]


class _RoundRobin(RoundRobinPartitionAssignor):
    @classmethod
    def metadata(cls, topics: Iterable[str]) -> Any:
        return _with_process(super().metadata(topics))  # type: ignore[no-untyped-call]


ASSIGNORS: Final = (_Range, _RoundRobin)
"""The client's own assignors, under their names, for members that show their process."""


def dead_members(
    members: Iterable[Mapping[str, Any]], *, died: Callable[[UUID], bool] = has_died
) -> Collection[str]:
    """Return the ids of the members in a group's description whose process has died.

    While the group rebalances, the broker shows no user data, and no member counts as dead.
    """
    return [member["member_id"] for member in members if _is_dead(member, died)]


def _is_dead(member: Mapping[str, Any], died: Callable[[UUID], bool]) -> bool:
    # A static member returns by itself, with the same id.
    if member.get("group_instance_id"):
        return False
    subscription = member.get("member_metadata")
    data = subscription.get("user_data") if isinstance(subscription, Mapping) else None
    text = data.decode("ascii", "replace") if isinstance(data, bytes) else str(data)
    try:
        return text.startswith(_MARK) and died(UUID(hex=text.removeprefix(_MARK)))
    except ValueError:
        return False
