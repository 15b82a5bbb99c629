"""The pairs of services between which events can flow, whether or not a run finds any."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Member, Received, Stream


def possible_streams(members: Collection[Member], received: Iterable[Received]) -> set[Stream]:
    """Return the streams of the configured groups, and the streams that have had events.

    Nothing else shows that a stream exists when all its rows were purged or lost.
    """
    names = {member.name for member in members}
    return {*_named(members), *(_had(each) for each in received if each.source in names)}


def _had(seen: Received) -> Stream:
    return Stream(kind=seen.kind, upstream=seen.source, downstream=seen.downstream)


def _named(members: Collection[Member]) -> Iterator[Stream]:
    for member in members:
        for group in member.groups or ():
            if group.kind is not TxKind.COMMIT:
                # Compensated events went the other way, in a stream of their own.
                continue
            for upstream in members:
                is_named = not group.upstreams or upstream.name in group.upstreams
                if is_named and upstream.name != member.name:
                    yield Stream(kind=group.kind, upstream=upstream.name, downstream=member.name)
