"""The circumstances of a run, as its report shows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

from shieldtx.reconcile import basis
from shieldtx.reconcile.basis import Basis
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.incremental import Mode, mode_of
from shieldtx.reconcile.request import ReconcileRequest, Selection, ServiceDatabase
from shieldtx.reconcile.run_context import DatabaseAddress, EarlierRun, RunContext, address_of
from shieldtx.store.reconciliation_runs import StoredRun


def context_of(configuration: Configuration) -> RunContext:
    """Return the circumstances of each run of a configuration."""
    return RunContext(
        version=version("shieldtx"),
        configuration=configuration.scope,
        options=configuration.options,
        databases=tuple(map(_database, configuration.services)),
    )


def after_earlier_run(
    request: ReconcileRequest,
    selection: Selection | None,
    ended: Iterable[StoredRun],
    now: Basis,
) -> RunContext:
    """Return the context of a run, with the run before it; `ended` has the latest run first.

    The numbers of a run are comparable if it judged by the same configuration. Those of a
    `selection` that is a span of time are not.
    """
    earlier = next((run for run in ended if _is_of_these_services(run, now)), None)
    if earlier is None:
        return request.context
    is_window = selection is not None and mode_of(selection) is Mode.WINDOW
    is_comparable = not is_window and _is_judged_alike(earlier, now)
    return replace(
        request.context,
        earlier=EarlierRun(
            run_id=earlier.run_id,
            started_at=earlier.started_at,
            outcome=str(earlier.outcome),
            page=_page_of(earlier, request.folder.expanduser().resolve()),
            totals=dict(earlier.totals) if is_comparable else None,
        ),
    )


def _database(service: ServiceDatabase) -> DatabaseAddress:
    replica = service.replica_url
    return DatabaseAddress(
        service=service.name,
        address=address_of(service.url),
        replica=None if replica is None else address_of(replica),
    )


_CAME_TO_THEIR_END: Sequence[str] = [o.name for o in RunOutcome if o is not RunOutcome.ERROR]


def _is_of_these_services(run: StoredRun, now: Basis) -> bool:
    """Return whether a run has totals, and is not of another configuration with the same name."""
    if run.outcome not in _CAME_TO_THEIR_END or run.mode == Mode.WINDOW:
        return False
    judged = basis.from_json(run.basis)
    return judged is None or judged.services.keys() == now.services.keys()


def _is_judged_alike(run: StoredRun, now: Basis) -> bool:
    return basis.configuration_of(run.basis) == basis.configuration_of(basis.to_json(now))


def _page_of(run: StoredRun, folder: Path) -> str | None:
    """Return the relative address of a report in a folder next to `folder`.

    Reports elsewhere are not linked: this one may be read on another machine.
    """
    page = OutputFolder(path=Path(run.folder)).page
    if page.parent.parent != folder.parent or page.parent == folder or not page.is_file():
        return None
    return f"{os.pardir}/{quote(page.parent.name)}/{page.name}"
