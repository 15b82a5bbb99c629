"""The permissions of a repair, from the configuration, the databases and the stored runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from shieldtx.app.reconciliation_memory import repair_memory
from shieldtx.cli.reconcile_runs import Opened
from shieldtx.domain.states import TxKind
from shieldtx.reconcile import basis
from shieldtx.reconcile.repair.decisions import PART_OF_RETENTION, Policy
from shieldtx.reconcile.repair.lost_rows import LostRows
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.reconciliation_runs import StoredRun


def policy_of(
    databases: Opened,
    run: StoredRun,
    *,
    named: frozenset[Verdict],
    out_of_order: bool,
    restored: Collection[str],
) -> Policy:
    """Return what a repair may do; `restored` services lost their effects with their rows.

    Raises ShieldTxError where the databases cannot be read.
    """
    services = databases.services
    memory = repair_memory(databases.runs, databases.request, restored=restored)
    return Policy(
        services=frozenset(service.name for service in services),
        named=named,
        out_of_order=out_of_order,
        for_others={service.name: service.others for service in services},
        groups={service.name: service.groups or () for service in services},
        young_since={
            name: run.at - kept * PART_OF_RETENTION for name, kept in _kept(databases, run.at)
        },
        lost_rows=LostRows(
            whole_since=memory.incomplete_inboxes,
            kinds={service.name: _kinds(service, run) for service in services},
        ),
        in_order=memory.in_order,
    )


def _kinds(service: ServiceDatabase, run: StoredRun) -> frozenset[TxKind]:
    """Return the kinds of events that a service's groups receive, from the file and from a run.

    All kinds if the run is of another release, whose observations are unknown.
    """
    judged = basis.from_json(run.basis)
    if judged is None or judged.observed is None:
        return frozenset(TxKind)
    seen = judged.observed.received
    return frozenset(
        {group.kind for group in service.groups or ()}
        | {each.kind for each in seen if each.downstream == service.name}
    )


def _kept(databases: Opened, at: datetime) -> Iterator[tuple[str, timedelta]]:
    """Yield how long services keep settled rows, from the file or from the time of their purges."""
    for service in databases.services:
        purged_until = databases.stores[service.name].purged_until()
        purged = None if purged_until is None else at - purged_until
        kept = [each for each in (service.retention, purged) if each is not None]
        if kept:
            yield service.name, min(kept)
