"""Inboxes that may lack rows of events whose effects exist.

A group lacks rows of applied events after its inbox was emptied, recreated, or moved without rows.
After a restore of the whole database the effects are missing too. A run cannot distinguish the two
cases. So a run stores the affected inboxes, and a repair asks an operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.basis import Basis


class Inboxes(Protocol):
    """The current inboxes of services."""

    def inbox_has(self, service: str, earlier: DatabaseHistory) -> bool | None:
        """Return whether the inbox still has a row of the earlier run, or had none then.

        False: the inbox lacks a row that no purge has removed. None: a purge may have removed all.
        """
        ...

    def inbox_settled_since(self, service: str) -> datetime | None:
        """Return when one of the first rows of an inbox was settled; None if none is settled."""
        ...


def incomplete_inboxes(
    own: Iterable[Basis], others: Iterable[Iterable[Basis]], now: Basis, inboxes: Inboxes
) -> dict[str, datetime]:
    """Return each service with such an inbox, with the time from which the inbox has all rows.

    `own` are earlier runs of this configuration, and `others` those of each other configuration,
    the latest first. The latest run of each configuration that knew an inbox stands for the runs
    before it. Where no run proves that an inbox has kept its rows, the inbox is complete only from
    its oldest row on.
    """
    found = [
        _Inbox(name=name, now=now, history=service.history, inboxes=inboxes)
        for name, service in now.services.items()
        if service.history is not None
    ]
    _ask(own, found, is_own=True)
    for runs in others:
        _ask(runs, found, is_own=False)
    return {
        each.name: since
        for each in found
        if (since := each.whole_since()) is not None and each.is_kept(since)
    }


def _ask(runs: Iterable[Basis], inboxes: Iterable[_Inbox], *, is_own: bool) -> None:
    """Check each inbox against the latest run that knew the inbox."""
    waiting = list(inboxes)
    for run in runs:
        waiting = [each for each in waiting if not each.ask(run, is_own=is_own)]
        if not waiting:
            return


@dataclass(kw_only=True, slots=True)
class _Inbox:
    """The information of runs about a current inbox."""

    name: str
    now: Basis
    history: DatabaseHistory
    inboxes: Inboxes
    is_proved: bool = False
    """A run knew the inbox, and its rows are there or are known to be missing."""
    since: datetime | None = None
    """The time from which the inbox has all rows, by the checks so far; None: no row is missing."""

    def ask(self, run: Basis, *, is_own: bool) -> bool:
        """Return whether a run knew the inbox; runs of earlier releases did not check inboxes."""
        service = run.services.get(self.name)
        history = None if service is None else service.history
        if history is None or run.incomplete_inboxes is None:
            return False
        if not is_own and not _is_same_inbox(history, self.history):
            # A service of the same name in another file.
            return False
        self._note(run.incomplete_inboxes.get(self.name))
        has_rows = self.inboxes.inbox_has(self.name, history)
        if has_rows is False:
            # The rows may have been lost a moment ago.
            self._note(_later(self.history.asked_at, self.now.margin))
        self.is_proved = self.is_proved or has_rows is not None
        return True

    def whole_since(self) -> datetime | None:
        """Return the time from which the inbox has all rows; None if no row seems missing."""
        if not self.is_proved:
            oldest = self.inboxes.inbox_settled_since(self.name) or self.history.asked_at
            self._note(_later(oldest, self.now.margin))
        return self.since

    def is_kept(self, since: datetime) -> bool:
        """Return whether events before a time are still kept; a repair never covers older ones."""
        retention, asked_at = self.now.services[self.name].retention, self.history.asked_at
        return retention is None or asked_at is None or since > asked_at - retention

    def _note(self, since: datetime | None) -> None:
        if since is not None:
            self.since = since if self.since is None else max(since, self.since)


def _later(time: datetime | None, margin: timedelta) -> datetime | None:
    """Add the margin: writers use clocks of their own, which differ by no more than the margin."""
    return None if time is None else time + margin


def _is_same_inbox(before: DatabaseHistory, now: DatabaseHistory) -> bool:
    """Return whether the table is the same; in a promoted replica it is, on another timeline."""
    (database, _, inbox), (database_now, _, inbox_now) = before.objects, now.objects
    if (database, inbox) != (database_now, inbox_now):
        return False
    # A role may gain or lose the right to query the system identifier: the system is the same.
    return before.system is None or now.system is None or before.system == now.system
