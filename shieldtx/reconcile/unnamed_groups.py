"""Groups that have received events, and that the file leaves out where it names others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, Member, Received, Sent


def unnamed_groups(
    members: Collection[Member], received: Iterable[Received], *, earlier: Iterable[Received]
) -> Iterator[str]:
    """Say in sentences which groups have received what they are not named to receive.

    What they lack is not missed. A group that is not named at all is told of by what `earlier` runs
    have seen too, so until it is a former one: it may stand still, and have purged all that it had.
    One that is named for other events may have changed, with the file, and is told of by what the
    run itself finds `received`.

    Of rollbacks, those of the service's own events that another group is named to compensate: of
    others, a group may receive what it does not compensate.
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
    """Tell of former groups that no run has seen receive anything, or that the file names as well.

    `received` is what this run or an earlier one has seen.
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
    """Whether a group that has received events is named to receive them."""
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
