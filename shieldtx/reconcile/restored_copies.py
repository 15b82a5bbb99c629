"""Which runs have judged what a database lost since, because it was restored from a copy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Protocol

from shieldtx.ports.database_history import DatabaseHistory, Remains
from shieldtx.reconcile.judged_spans import ENOUGH, JudgedRun


class Databases(Protocol):
    """The databases of services as they are now."""

    def remains_of(self, service: str, earlier: DatabaseHistory) -> Remains:
        """Return what the database of a service has left of what it had."""
        ...

    def last_settled(self, service: str, *, before: datetime) -> datetime | None:
        """Return when the last row of a service was settled of those settled until then."""
        ...


def as_restored(
    runs: Iterable[JudgedRun],
    services: Collection[str],
    databases: Databases,
    *,
    margin: timedelta,
) -> Iterator[JudgedRun]:
    """Yield runs, the latest first, with the services that were restored since from earlier copies.

    Between its two latest settlements that are left around the time of the copy, the database had
    others. Each run until then has judged them, and none since can: that they are gone shows only
    where other services have kept their part of it.
    """
    all_ = iter(runs)
    latest = list(islice(all_, ENOUGH))
    copies = [
        copy for name in services if (copy := _copy_of(name, latest, databases, margin)) is not None
    ]
    for number, run in enumerate(chain(latest, all_)):
        restored = {copy.service: copy.until for copy in copies if copy.lacks_what_judged(number)}
        yield replace(run, restored=restored)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copy:
    """A database that was restored from an earlier copy."""

    service: str
    until: datetime | None
    """What it had in order when the copy was made; None: nothing of that time is left."""
    first_run: int | None
    """The latest run that judged nothing which the copy lacks; None: none is known."""

    def lacks_what_judged(self, number: int) -> bool:
        """Whether a run, by its number, has judged what the copy lacks."""
        return self.first_run is None or number < self.first_run


def _copy_of(
    service: str, runs: Sequence[JudgedRun], databases: Databases, margin: timedelta
) -> _Copy | None:
    """Return the copy that a database was restored from since the latest run; None: it was not."""
    copied_before: datetime | None = None
    first_run = None
    for number, run in enumerate(runs):
        history = run.histories.get(service)
        if history is None:
            continue
        remains = databases.remains_of(service, history)
        if remains.copied_before is not None:
            copied_before = min(remains.copied_before, copied_before or remains.copied_before)
        elif copied_before is None:
            return None
        elif remains.has_settlement:
            first_run = number
            break
    if copied_before is None:
        return None
    last = databases.last_settled(service, before=copied_before)
    # What was on its way when the copy was made has arrived, or was settled, after it.
    until = None if last is None else last - margin
    return _Copy(service=service, until=until, first_run=first_run)
