"""What a repair may do, by the configuration, the databases and the runs that are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

from shieldtx.app.reconciliation_memory import incomplete_since
from shieldtx.cli.found_rows import findings_of
from shieldtx.cli.reconcile_runs import Opened
from shieldtx.reconcile import basis
from shieldtx.reconcile.basis import Basis
from shieldtx.reconcile.incomplete_inboxes import noticed_before
from shieldtx.reconcile.judged_spans import ENOUGH
from shieldtx.reconcile.repair.decisions import PART_OF_RETENTION, Policy
from shieldtx.reconcile.repair.known_in_order import known_in_order
from shieldtx.reconcile.repair.lost_rows import LostRows
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.reconciliation_runs import StoredRun


def policy_of(
    databases: Opened,
    run: StoredRun,
    *,
    copy: Path | None,
    named: frozenset[Verdict],
    out_of_order: bool,
    restored: Collection[str],
) -> Policy:
    """Return what may be done about a run; of `restored` services, effects went with the rows.

    Raises ShieldTxError where the databases, or a folder that has to be asked, cannot be read.
    """
    services = databases.services
    lost = [service for service in services if service.name not in restored]
    since = _incomplete_since(databases, run, copy)
    return Policy(
        services=frozenset(service.name for service in services),
        named=named,
        out_of_order=out_of_order,
        for_others={service.name: service.others for service in services},
        groups={service.name: service.groups or () for service in services},
        young_since={
            name: run.at - kept * PART_OF_RETENTION for name, kept in _kept(databases, run.at)
        },
        lost_rows=LostRows(whole_since={s.name: since[s.name] for s in lost if s.name in since}),
        in_order=known_in_order(_good_runs(databases), [service.member for service in lost]),
    )


def _incomplete_since(
    databases: Opened, run: StoredRun, copy: Path | None
) -> Mapping[str, datetime]:
    """Return which inboxes may lack rows of effects, by the run or by what is left of it now."""
    since = dict(incomplete_since(run, databases.request))
    judged = basis.from_json(run.basis)
    if judged is None or judged.incomplete_inboxes is None:
        said = findings_of(run, copy).full_because
        names = (service.name for service in databases.services)
        since |= dict.fromkeys(noticed_before(said, names), run.at)
    return since


def _good_runs(databases: Opened) -> Iterator[tuple[Basis, Mapping[str, datetime]]]:
    # Each run remembers what those before it have met.
    for good in islice(databases.runs.good(), ENOUGH):
        if (judged := basis.from_json(good.basis)) is not None:
            yield judged, good.watermarks


def _kept(databases: Opened, at: datetime) -> Iterator[tuple[str, timedelta]]:
    """Yield how long services keep settled rows: by the file, or by what they have purged."""
    for service in databases.services:
        purged_until = databases.stores[service.name].purged_until()
        purged = None if purged_until is None else at - purged_until
        kept = [each for each in (service.retention, purged) if each is not None]
        if kept:
            yield service.name, min(kept)
