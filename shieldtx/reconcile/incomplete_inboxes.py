"""Inboxes that may lack rows of events whose effects are there.

Where an inbox was emptied, recreated, or moved without its rows, its groups lack events that they
have applied. After a restore of the whole database they lack the effects too. No run can tell the
two apart, so a run stores which inboxes it concerns, and a repair asks an operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.basis import Basis


class Inboxes(Protocol):
    """The inboxes of services as they are now."""

    def inbox_lacks(self, service: str, earlier: DatabaseHistory) -> bool:
        """Whether the inbox of a service lacks a row of then that no purge has removed."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRun:
    """A run that is compared with the databases as they are now."""

    scope: str
    """The name of its configuration."""
    basis: Basis
    good: bool


def incomplete_inboxes(
    earlier: Iterable[EarlierRun], now: Basis, inboxes: Inboxes, *, scope: str
) -> dict[str, datetime]:
    """Return the services with such inboxes, each with the time from which its inbox has all rows.

    `earlier` are runs of all names, the latest first. The latest run of `scope` decides, and stands
    for all runs before it. Of each other name, the latest run since then counts too. A run of an
    earlier release does not know of such inboxes: the runs before it count as well, up to a good
    one.
    """
    found: dict[str, datetime] = {}
    undecided = {
        name: _Comparison(name=name, now=now, history=service.history, inboxes=inboxes)
        for name, service in now.services.items()
        if service.history is not None
    }
    asked: set[tuple[str, str]] = set()
    for run in earlier:
        for name, comparison in list(undecided.items()):
            history = _history_of(run.basis, name)
            is_own = run.scope == scope
            if history is None or (not is_own and (run.scope, name) in asked):
                continue
            asked.add((run.scope, name))
            whole_since = comparison.whole_since(run, history, is_own=is_own)
            if whole_since is not None:
                found[name] = max(whole_since, found.get(name, whole_since))
            if is_own and (whole_since or run.good or run.basis.incomplete_inboxes is not None):
                del undecided[name]
        if not undecided:
            break
    return {name: since for name, since in found.items() if _matters(since, now, name)}


def noticed_before(full_because: Iterable[str], services: Iterable[str]) -> frozenset[str]:
    """Return the services whose inboxes a run of an earlier release found to be others.

    Such a run has stored nothing but the sentences of its report.
    """
    said = tuple(full_because)
    return frozenset(
        name
        for name in services
        for sentence in said
        if sentence.startswith(f"the inbox of {name} lacks ")
        or sentence == f"the database of {name} is another one, or its tables were recreated"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Comparison:
    """An inbox as it is now, to be compared with what earlier runs knew of it."""

    name: str
    now: Basis
    history: DatabaseHistory
    inboxes: Inboxes

    def whole_since(
        self, run: EarlierRun, history: DatabaseHistory, *, is_own: bool
    ) -> datetime | None:
        """Return from when the inbox has all rows; None: nothing says that it lacks any."""
        is_same = _is_same_inbox(history, self.history)
        if not is_same and not is_own:
            # A service of the same name in another file.
            return None
        if is_same and not self.inboxes.inbox_lacks(self.name, history):
            return (run.basis.incomplete_inboxes or {}).get(self.name)
        # It may have lost them a moment ago. Writers note what they send by clocks of their own,
        # which are no further apart than the margin.
        asked_at = self.history.asked_at
        return None if asked_at is None else asked_at + self.now.margin


def _history_of(basis: Basis, name: str) -> DatabaseHistory | None:
    service = basis.services.get(name)
    return None if service is None else service.history


def _is_same_inbox(before: DatabaseHistory, now: DatabaseHistory) -> bool:
    """Whether it is the same table. A promoted replica has the same ones, on another timeline."""
    (database, _, inbox), (database_now, _, inbox_now) = before.objects, now.objects
    if (database, inbox) != (database_now, inbox_now):
        return False
    # A role may be granted the right to ask for the system, or lose it: that is no other system.
    return before.system is None or now.system is None or before.system == now.system


def _matters(since: datetime, now: Basis, name: str) -> bool:
    """Whether events of before are still kept; older ones are not repaired in any case."""
    service = now.services[name]
    if service.retention is None or service.history is None or service.history.asked_at is None:
        return True
    return since > service.history.asked_at - service.retention
