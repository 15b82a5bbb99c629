"""A database that is restored as a whole to an earlier moment, from a backup.

Everything that its service wrote and received since then is lost, and other services still have
their part. The server may show the restore (another timeline), as after a recovery to a point in
time, or not, as after a copy of the disk was restored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from shieldtx.domain.states import TxKind
from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.healthy import happens_at_once, is_given_up, some_type
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import UNDO, Group, Judged, undo_of
from tests.verification.oracle.timeline import DAY, Life, Restore
from tests.verification.oracle.topic_stories import keys_are_used_for_days

V = Verdict
QUICK: Final = (is_given_up, keys_are_used_for_days)
"""Stories whose events settle within minutes: at most moments, none of them is in progress."""
_SINCE: Final = 100
"""Minutes after a night at which the copy is restored."""


def database_is_restored(h: History) -> None:
    """Let events happen before and after the backup to which a database is restored."""
    *nights, _ = h.setting.nights
    night = int(h.random.choice(nights).at)
    h.restores.append(
        Restore(
            service=h.random.choice(h.setting.services),
            at=night + _SINCE,
            to=night - h.random.choice((60, 60, 300, DAY, 2 * DAY)),
            is_seen=h.random.random() < 0.5,
        )
    )
    for _ in range(h.random.randint(2, 5)):
        event_type, groups = some_type(h)
        at = night - h.random.choice((70, 200, 500, DAY + 100, 3 * DAY))
        happens_at_once(h, max(1, at), event_type, groups)


def carry_out(h: History) -> None:
    """Remove everything after the backup from the database, and note the resulting truth."""
    if not h.restores:
        return
    chosen, *_ = h.restores
    # The backup would contain half of a story in progress.
    to, at = _quiet(h, chosen.to), _quiet(h, chosen.at)
    restore = Restore(service=chosen.service, at=at, to=to, is_seen=chosen.is_seen)
    h.restores[:] = [restore]
    for life in h.lives:
        if is_lost(restore, life):
            life.gone_at = min(life.gone_at, restore.at)
    events = {(life.source, life.event_id): life for life in h.lives if life.group is None}
    for arrival in h.lives:
        event = events.get((arrival.source, arrival.event_id))
        if arrival.group is not None and event is not None:
            _say(h, restore, event, arrival)


def is_lost(restore: Restore, life: Life) -> bool:
    """Return whether a row was written between the backup and its restore."""
    return life.service == restore.service and restore.to < life.born_at < restore.at


def _say(h: History, restore: Restore, event: Life, arrival: Life) -> None:
    lost = is_lost(restore, event), is_lost(restore, arrival)
    group: Group | str = _group_of(h, arrival)
    if lost == (False, True):
        settled_at = event.settled_at
        known = {"moved": settled_at, "trace": settled_at, "rows": (event,)}
        h.say(V.MISSING_DOWNSTREAM, event, group, since=restore.at, **known)
    elif lost == (True, False):
        trace = min(arrival.columns["event_time"], arrival.born_at)
        known = {"moved": arrival.settled_at, "trace": trace, "rows": (arrival,)}
        h.say(V.UNKNOWN_UPSTREAM, event, group, since=restore.at, arrival=arrival, **known)


def _group_of(h: History, arrival: Life) -> Group | str:
    """Return the group that has received an event, or that has received a rollback."""
    if arrival.kind is TxKind.ROLLBACK and arrival.group == undo_of(arrival.service):
        return UNDO
    of_its_name = (
        group
        for group in h.setting.groups
        if (group.service, group.name) == (arrival.service, arrival.group)
    )
    return next(of_its_name)


def _quiet(h: History, moment: float) -> float:
    """Return the moment, or the latest one before it, without a story in progress."""
    roots: dict[UUID, UUID] = {}
    for life in h.lives:
        cause = life.columns["causation_id"]
        if cause is not None:
            roots[life.event_id] = cause
    spans: dict[UUID, list[float]] = defaultdict(list)
    for life in h.lives:
        root = life.event_id
        while root in roots:
            root = roots[root]
        spans[root] += [life.born_at, life.versions[-1].at]
    while under_way := [s for s in spans.values() if min(s) - 1 < moment < max(s) + 1]:
        moment = min(min(span) for span in under_way) - 1.25
    return moment


# --- what a run has to notice --------------------------------------------------------------------


def must_look_at_all(h: History, night: Judged) -> str:
    """Return the service whose database a run has to recognize as another one; empty: none.

    After a change of the configuration, or without a good run, the run is a full one anyway.
    """
    earlier = [each for each in h.setting.nights if each.at < night.at]
    if not all(_is_alike(h, each, night) for each in earlier):
        return ""
    for restore in h.restores:
        before = max((each.at for each in earlier), default=None)
        if before is None or not before < restore.at < night.at:
            continue
        had = [life for life in h.lives if is_lost(restore, life) and life.born_at <= before]
        if restore.is_seen or had:
            return restore.service
    return ""


def _is_alike(h: History, one: Judged, other: Judged) -> bool:
    topics = h.topics
    reads_alike = topics is None or topics.are_read(one.at) == topics.are_read(other.at)
    return replace(one, at=other.at) == other and reads_alike


def identities(h: History, night: Judged) -> Mapping[str, DatabaseHistory]:
    """Return by service the identity that its server reports in a night."""
    return {
        night.called(service): DatabaseHistory(
            system="one",
            timeline=timeline(h, night, service),
            objects=(1, 2, 3),
            newest=(None, None),
        )
        for service in h.setting.services
    }


def timeline(h: History, night: Judged, service: str) -> str:
    """Return the timeline of a service's server."""
    seen = [
        restore
        for restore in h.restores
        if restore.is_seen and restore.service == service and restore.at <= night.at
    ]
    return f"0000000{1 + len(seen)}"
