"""What stored runs have seen and judged, in the databases of all services and under any name.

The runs of a configuration are stored in the database of its first service, under its name. The
order of the services and the name of a file may change, and what runs have seen must not be lost
with that. So the runs of other names count as well, wherever they tell of the same services in the
same databases.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, tee
from typing import Final

from sqlalchemy.exc import ProgrammingError

from shieldtx.app.reconciliation_start import ServiceDatabases
from shieldtx.domain.reasons import message_of
from shieldtx.reconcile import basis
from shieldtx.reconcile.basis import Basis
from shieldtx.reconcile.earlier_runs import past_of, same_databases, together
from shieldtx.reconcile.earlier_topics import topics_before
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.judged_spans import JudgedRun, JudgedUntil, judged_until
from shieldtx.reconcile.observed import ObservedTopics, Past
from shieldtx.reconcile.restored_copies import as_restored
from shieldtx.store.reconciliation_runs import SqlReconciliationRuns, StoredRun

_CAME_TO_THEIR_END: Final = [o.name for o in RunOutcome if o is not RunOutcome.ERROR]


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What a run takes over from those before it."""

    past: Past
    topics_before: ObservedTopics
    judged_until: tuple[JudgedUntil, ...]
    remarks: tuple[str, ...]
    """Where stored runs could not be read, in sentences."""


def memory_of(
    own: SqlReconciliationRuns, scope: str, databases: ServiceDatabases, now: Basis
) -> Memory:
    """Read what earlier runs have seen of what is judged `now`; `own` are those of its name."""
    remarks: list[str] = []
    others = list(_of_other_names(scope, databases, remarks))
    # Since when a group is a former one, the latest run that knows of it says.
    others.sort(key=lambda runs: runs[0].started_at, reverse=True)
    ended, ended_too, with_topics = tee(own.all_ended(), 3)
    judged = heapq.merge(
        judged_runs(ended_too),
        *(_judged_alike(runs, now) for runs in others),
        key=lambda run: run.started_at,
        reverse=True,
    )
    return Memory(
        past=together(
            past_of((basis.from_json(run.basis) for run in runs), now) for runs in (ended, *others)
        ),
        topics_before=topics_before(
            (basis.from_json(run.basis) for run in chain(with_topics, *others)), now
        ),
        judged_until=judged_until(
            as_restored(judged, now.services, databases, margin=now.margin), now.services
        ),
        remarks=tuple(remarks),
    )


def _of_other_names(
    scope: str, databases: ServiceDatabases, remarks: list[str]
) -> Iterator[Sequence[StoredRun]]:
    """Yield runs of each name in each database, the latest first.

    The runs of `scope` in the first database are left out: the run that asks has read them.
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


def judged_runs(ended: Iterable[StoredRun]) -> Iterator[JudgedRun]:
    """Yield what runs have judged that have ended; those of a window have left most of it out.

    A service of which a good run met nothing was judged as well: nothing of it was there. A run
    with watermarks that lie ahead went by a clock that was ahead: it is not known what it judged.
    """
    for run in ended:
        if run.mode == Mode.WINDOW or not (run.good or run.watermarks):
            continue
        if any(watermark > run.at for watermark in run.watermarks.values()):
            continue
        judged = basis.from_json(run.basis)
        if judged is None:
            yield JudgedRun(
                started_at=run.started_at,
                services=frozenset(run.watermarks),
                watermarks=run.watermarks,
            )
            continue
        latest = min(run.watermarks.values(), default=run.started_at - judged.margin)
        met = dict.fromkeys(judged.services, latest) if run.good else {}
        watermarks = {**met, **run.watermarks}
        yield JudgedRun(
            started_at=run.started_at,
            services=frozenset(judged.services),
            watermarks=watermarks,
            histories={
                name: service.history
                for name, service in judged.services.items()
                # What could not be judged was not told of either.
                if service.history is not None and name in watermarks
            },
        )


def _judged_alike(ended: Iterable[StoredRun], now: Basis) -> Iterator[JudgedRun]:
    """Yield what runs of another name have judged: services as they are now, by the same filters.

    A run that was to judge less says nothing of the rest.
    """
    for run in ended:
        judged = basis.from_json(run.basis)
        if judged is None:
            continue
        alike = same_databases(judged, now) & basis.judged_alike(judged, now)
        for each in judged_runs([run]):
            known = {name: each.histories[name] for name in alike & each.histories.keys()}
            yield replace(each, services=alike, histories=known)
