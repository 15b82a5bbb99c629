"""Groups that have received events without being named, where the file names other groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, Member, Received, Sent


def unnamed_groups(
    members: Collection[Member], received: Iterable[Received], *, earlier: Iterable[Received]
) -> Iterator[str]:
    """Yield sentences for groups that have received events without being named to receive them.

    Events that such a group lacks are not reported. A group that is not named at all is also
    reported from `earlier` runs, until it is a former group: it may be stopped, and have purged all
    its rows. A group that is named for other events may have changed together with the file, so
    only this run's `received` events count.

    For rollbacks, only those of the service's own events count that another group is named to
    compensate. Of other services, a group may receive rollbacks that it does not compensate.
    """
    by_name = {member.name: member for member in members}
    found: dict[tuple[str, str], set[str]] = {}
    before = (each for each in earlier if not _is_named(by_name.get(each.downstream), each.group))
    for seen in {*received, *before}:
        member = by_name.get(seen.downstream)
        if member is None or seen.source not in by_name:
            continue
        if _is_left_out(member, seen) and not member.is_former(seen):
            type_ = f"{seen.event_type} ({seen.topic}, {seen.kind}) of {seen.source}"
            found.setdefault((member.name, seen.group), set()).add(type_)
    for (service, group), types in sorted(found.items()):
        yield (
            f"group {group} of {service} has received {', '.join(sorted(types))}, and is not named "
            "to receive it: what it lacks is not missed. Name it with these events; or, if it "
            f"should not receive them any more, list it in `former_groups` of {service}"
        )


def mistyped_former_groups(
    members: Collection[Member], received: Iterable[Received]
) -> Iterator[str]:
    """Yield sentences for former groups that no run has seen, or that the file names as well.

    `received` has the receipts of this run and of earlier ones.
    """
    by_name = {member.name: member for member in members}
    known = [each for each in received if {each.source, each.downstream} <= by_name.keys()]
    for member in members:
        ended = [
            each
            for each in known
            if each.downstream == member.name and not is_named_for(member, each)
        ]
        for former in member.former_groups:
            if not any(map(former.has_had, ended)):
                yield (
                    f"`former_groups` of {member.name} names {former}, and no run has seen it "
                    "receive anything that the groups in the file do not decide: correct the "
                    "name, or take it out"
                )


def is_named_for(member: Member, seen: Received) -> bool:
    """Return whether a group that has received events is named to receive them."""
    return any(group.name == seen.group for group in _named_for(member, seen))


def _is_named(member: Member | None, name: str) -> bool:
    return member is not None and any(group.name == name for group in member.groups or ())


def _is_left_out(member: Member, seen: Received) -> bool:
    if seen.kind is TxKind.COMMIT:
        decides = any(group.kind is TxKind.COMMIT for group in member.groups or ())
    else:
        decides = seen.causation_source == member.name and bool(_named_for(member, seen))
    return decides and not is_named_for(member, seen)


def _named_for(member: Member, seen: Received) -> list[ExpectedGroup]:
    """Return the groups that are named to receive such events."""
    what = Sent(upstream=seen.source, kind=seen.kind, topic=seen.topic, event_type=seen.event_type)
    of_others = seen.kind is TxKind.ROLLBACK and seen.causation_source != member.name
    groups = (g for g in member.groups or () if (g.kind, g.of_others) == (seen.kind, of_others))
    if of_others:
        return [group for group in groups if group.names(what, seen.causation_source)]
    return [group for group in groups if group.takes(what, service=member.name)]
