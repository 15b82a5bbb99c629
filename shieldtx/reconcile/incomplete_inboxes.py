"""Inboxes that may lack rows of events whose effects are there.

Where an inbox was emptied, recreated, or moved without its rows, its groups lack events that they
have applied. After a restore of the whole database they lack the effects too. No run can tell the
two apart, so a run stores which inboxes it concerns, and a repair asks an operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.basis import Basis


class Inboxes(Protocol):
    """The inboxes of services as they are now."""

    def inbox_has(self, service: str, earlier: DatabaseHistory) -> bool | None:
        """Whether the inbox of a service has a row of then still, or had none.

        False: it lacks one that no purge has removed. None: a purge may have removed all of them.
        """
        ...

    def inbox_settled_since(self, service: str) -> datetime | None:
        """Return when one of the first rows of an inbox was settled; None: none is settled."""
        ...


def incomplete_inboxes(
    own: Iterable[Basis], others: Iterable[Iterable[Basis]], now: Basis, inboxes: Inboxes
) -> dict[str, datetime]:
    """Return the services with such inboxes, each with the time from which its inbox has all rows.

    `own` are earlier runs of this configuration, and `others` those of each other one, the latest
    first. Of each, the latest run that knew of an inbox is asked, and stands for those before it.
    Where none proves that an inbox has kept its rows, it is known from its oldest row on alone.
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
    """Ask, for each inbox, the latest run that knew of it."""
    waiting = list(inboxes)
    for run in runs:
        waiting = [each for each in waiting if not each.ask(run, is_own=is_own)]
        if not waiting:
            return


@dataclass(kw_only=True, slots=True)
class _Inbox:
    """What runs say of an inbox as it is now."""

    name: str
    now: Basis
    history: DatabaseHistory
    inboxes: Inboxes
    is_proved: bool = False
    """A run knew of the inbox, and its rows are there, or are known to be gone."""
    since: datetime | None = None
    """From when it has all rows, by what was found; None: nothing was."""

    def ask(self, run: Basis, *, is_own: bool) -> bool:
        """Return whether a run knew of the inbox; one of an earlier release did not ask for it."""
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
            # It may have lost them a moment ago.
            self._note(_later(self.history.asked_at, self.now.margin))
        self.is_proved = self.is_proved or has_rows is not None
        return True

    def whole_since(self) -> datetime | None:
        """Return from when the inbox has all rows; None: nothing says that it lacks any."""
        if not self.is_proved:
            oldest = self.inboxes.inbox_settled_since(self.name) or self.history.asked_at
            self._note(_later(oldest, self.now.margin))
        return self.since

    def is_kept(self, since: datetime) -> bool:
        """Whether events of before a time are still kept; older ones are repaired in no case."""
        retention, asked_at = self.now.services[self.name].retention, self.history.asked_at
        return retention is None or asked_at is None or since > asked_at - retention

    def _note(self, since: datetime | None) -> None:
        if since is not None:
            self.since = since if self.since is None else max(since, self.since)


def _later(time: datetime | None, margin: timedelta) -> datetime | None:
    """Add the margin: writers note what they send by clocks of their own, no further apart."""
    return None if time is None else time + margin


def _is_same_inbox(before: DatabaseHistory, now: DatabaseHistory) -> bool:
    """Whether it is the same table. A promoted replica has the same ones, on another timeline."""
    (database, _, inbox), (database_now, _, inbox_now) = before.objects, now.objects
    if (database, inbox) != (database_now, inbox_now):
        return False
    # A role may be granted the right to ask for the system, or lose it: that is no other system.
    return before.system is None or now.system is None or before.system == now.system
