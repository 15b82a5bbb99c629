"""The results of stored runs, in the databases of all services and under any name.

The runs of a configuration are stored in the database of its first service, under its name. A
change in the order of the services, or in the name of a file, must not lose them. So the runs of
other names count as well, where they judged the same services in the same databases.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, islice, tee
from typing import Final

from sqlalchemy.exc import ProgrammingError

from shieldtx.app.reconciliation_start import ServiceDatabases, opened
from shieldtx.domain.reasons import message_of
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile import basis
from shieldtx.reconcile.basis import Basis
from shieldtx.reconcile.earlier_runs import past_of, same_databases, together
from shieldtx.reconcile.earlier_topics import topics_before
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incomplete_inboxes import incomplete_inboxes
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.judged_spans import ENOUGH, JudgedRun, JudgedUntil, judged_until
from shieldtx.reconcile.observed import ObservedTopics, Past
from shieldtx.reconcile.repair.known_in_order import GoodRun, KnownInOrder, known_in_order
from shieldtx.reconcile.request import ReconcileRequest
from shieldtx.reconcile.restored_copies import as_restored
from shieldtx.store.reconciliation_runs import SqlReconciliationRuns, StoredRun

_Run = tuple[StoredRun, Basis | None]
"""A stored run, and its basis; None: another release has written the basis.

The basis is decoded once, and only when needed: for most runs never."""

_CAME_TO_THEIR_END: Final = [o.name for o in RunOutcome if o is not RunOutcome.ERROR]


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The facts that a run takes over from earlier runs."""

    past: Past
    topics_before: ObservedTopics
    judged_until: tuple[JudgedUntil, ...]
    incomplete_inboxes: Mapping[str, datetime]
    """By service whose inbox may lack rows of existing effects: the time from which no row is
    missing."""
    remarks: tuple[str, ...]
    """Why stored runs could not be read, in sentences."""


def memory_of(own: SqlReconciliationRuns, databases: ServiceDatabases, now: Basis) -> Memory:
    """Return what earlier runs know of the basis `now`; `own` are the runs of its name."""
    remarks: list[str] = []
    others = list(_of_other_names(own.scope, databases, remarks))
    # The latest run that knows a group decides since when that group is a former one.
    others.sort(key=lambda runs: runs[0].started_at, reverse=True)
    by_name = [tee(_with_bases(runs), 4) for runs in (own.all_ended(), *others)]
    for_past, for_topics, for_inboxes, judged_by = zip(*by_name, strict=True)
    judged_by_own, *judged_by_others = judged_by
    own_inboxes, *others_inboxes = map(_known, for_inboxes)
    own_past, *others_past = (past_of((read for _, read in runs), now) for runs in for_past)
    judged = heapq.merge(
        _judged_runs(judged_by_own),
        *(_judged_alike(runs, now) for runs in judged_by_others),
        key=lambda run: run.started_at,
        reverse=True,
    )
    return Memory(
        past=together(own_past, others_past),
        topics_before=topics_before((read for _, read in chain.from_iterable(for_topics)), now),
        judged_until=judged_until(
            as_restored(judged, now.services, databases, margin=now.margin), now.services
        ),
        incomplete_inboxes=incomplete_inboxes(own_inboxes, others_inboxes, now, databases),
        remarks=tuple(remarks),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairMemory:
    """The facts that a repair takes over from all runs, also from runs after its own."""

    incomplete_inboxes: Mapping[str, datetime]
    """By service whose inbox may now lack rows of effects: the time from which no row is
    missing."""
    in_order: KnownInOrder
    """What good runs found in order at these services, except where effects were lost."""


def repair_memory(
    own: SqlReconciliationRuns, request: ReconcileRequest, *, restored: Collection[str]
) -> RepairMemory:
    """Return what runs know of a repair's services; those in `restored` lost effects with rows.

    Raises ConfigurationError where stored runs cannot be read.
    """
    unread: list[str] = []
    members = [member for member in request.members if member.name not in restored]
    with opened(request) as databases:
        now = basis.basis_of(request, databases.histories())
        others = list(_of_other_names(own.scope, databases, unread))
        if unread:
            raise ConfigurationError("; ".join(unread))
        by_name = [tee(_with_bases(runs), 2) for runs in (own.all_ended(), *others)]
        (own_inboxes, own_good), *of_others = by_name
        inboxes = incomplete_inboxes(
            _known(own_inboxes), [_known(runs) for runs, _ in of_others], now, databases
        )
    good = chain(_good(own_good, now=None), *(_good(runs, now=now) for _, runs in of_others))
    return RepairMemory(
        incomplete_inboxes={name: at for name, at in inboxes.items() if name not in restored},
        in_order=known_in_order(good, members),
    )


def _good(ended: Iterable[_Run], *, now: Basis | None) -> Iterator[GoodRun]:
    """Yield what good runs have read; with `now`, only of services judged in the same way."""
    runs = ((run, read) for run, read in ended if run.good and read is not None)
    # Each run contains what the earlier ones have read.
    for run, read in islice(runs, ENOUGH):
        alike = (
            frozenset(read.services)
            if now is None
            else same_databases(read, now) & basis.judged_alike(read, now)
        )
        yield GoodRun(
            watermarks=run.watermarks,
            received=[
                seen
                for seen in (read.observed.received if read.observed else ())
                if {seen.downstream, seen.source} <= alike
            ],
        )


def _known(runs: Iterable[_Run]) -> Iterator[Basis]:
    """Yield the bases of runs, as far as they can be read."""
    return (read for _, read in runs if read is not None)


def _with_bases(runs: Iterable[StoredRun]) -> Iterator[_Run]:
    """Yield each run with its basis."""
    return ((run, basis.from_json(run.basis)) for run in runs)


def _of_other_names(
    scope: str, databases: ServiceDatabases, remarks: list[str]
) -> Iterator[Sequence[StoredRun]]:
    """Yield the runs of each name in each database, the latest first.

    The runs of `scope` in the first database are left out: the caller has read them.
    """
    for number, (service, runs) in enumerate(databases.stored_runs(scope)):
        try:
            read = [each.ended_as(_CAME_TO_THEIR_END) for each in runs.of_other_scopes()]
            if number:
                read.append(runs.ended_as(_CAME_TO_THEIR_END))
        except ProgrammingError as error:
            remarks.append(
                f"the runs that are stored in the database of {service} cannot be read "
                f"({message_of(error)}), so that what they have seen is not known to this one: "
                f"GRANT SELECT ON shield_reconcile_run TO the role of {service}"
            )
            continue
        yield from filter(None, read)


def _judged_runs(ended: Iterable[_Run]) -> Iterator[JudgedRun]:
    """Yield what ended runs have judged, without runs of a window, which omit most rows."""
    for run, read in ended:
        if (judged := _judged_by(run, read)) is not None:
            yield judged


def _judged_alike(ended: Iterable[_Run], now: Basis) -> Iterator[JudgedRun]:
    """Yield what runs of another name have judged: the same services, with the same filters.

    A run that judged less proves nothing about the rest.
    """
    for run, read in ended:
        if read is None or (judged := _judged_by(run, read)) is None:
            continue
        alike = same_databases(read, now) & basis.judged_alike(read, now)
        known = {name: judged.histories[name] for name in alike & judged.histories.keys()}
        yield replace(judged, services=alike, histories=known)


def _judged_by(run: StoredRun, read: Basis | None) -> JudgedRun | None:
    """Return what a run has judged; None: nothing, or not known.

    A service of which a good run read nothing was judged as well: it had no rows. A run with
    watermarks in the future used a wrong clock: what it judged is unknown.
    """
    if run.mode == Mode.WINDOW or not (run.good or run.watermarks):
        return None
    if any(watermark > run.at for watermark in run.watermarks.values()):
        return None
    if read is None:
        return JudgedRun(
            started_at=run.started_at,
            services=frozenset(run.watermarks),
            watermarks=run.watermarks,
        )
    latest = min(run.watermarks.values(), default=run.started_at - read.margin)
    met = dict.fromkeys(read.services, latest) if run.good else {}
    watermarks = {**met, **run.watermarks}
    return JudgedRun(
        started_at=run.started_at,
        services=frozenset(read.services),
        watermarks=watermarks,
        histories={
            name: service.history
            for name, service in read.services.items()
            # A service that was not judged has no known history either.
            if service.history is not None and name in watermarks
        },
    )
