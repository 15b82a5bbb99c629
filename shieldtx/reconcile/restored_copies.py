"""The runs that judged events which a database has since lost in a restore from a copy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Protocol

from shieldtx.ports.database_history import DatabaseHistory, Remains
from shieldtx.reconcile.judged_spans import ENOUGH, JudgedRun, Services, pairs_of


class Databases(Protocol):
    """The current databases of services."""

    def remains_of(self, service: str, earlier: DatabaseHistory) -> Remains:
        """Return the remains of an earlier state of a service's database."""
        ...

    def last_settled(self, service: str, *, before: datetime) -> datetime | None:
        """Return when the last row of a service was settled before a time."""
        ...


def as_restored(
    runs: Iterable[JudgedRun],
    services: Collection[str],
    databases: Databases,
    *,
    margin: timedelta,
) -> Iterator[JudgedRun]:
    """Yield runs, the latest first, with the services that have since been restored from a copy.

    The database had further settlements between its two latest remaining ones around the time of
    the copy. Each run up to then has judged these, and no later run can. The loss shows only where
    other services have kept their side of the events.
    """
    all_ = iter(runs)
    pairs = pairs_of(services)
    latest = _latest(all_, pairs)
    search = _Search(runs=latest, databases=databases, margin=margin)
    copies = [
        copy
        for pair in pairs
        for service in dict.fromkeys(pair)
        if (copy := search.copy_of(service, pair)) is not None
    ]
    for number, run in enumerate(chain(latest, all_)):
        restored: dict[Services, dict[str, datetime | None]] = {}
        for copy in copies:
            if copy.lacks_what_judged(number):
                restored.setdefault(copy.pair, {})[copy.service] = copy.until
        yield replace(run, restored=restored)


def _latest(runs: Iterator[JudgedRun], pairs: Collection[Services]) -> list[JudgedRun]:
    """Return enough of the latest runs that each pair has a run which knew both databases.

    The runs of another configuration may be far more frequent than those of a pair.
    """
    unknown = set(pairs)
    latest: list[JudgedRun] = []
    while len(latest) < ENOUGH or unknown:
        run = next(runs, None)
        if run is None:
            break
        latest.append(run)
        unknown -= {pair for pair in unknown if run.histories.keys() >= set(pair)}
    return latest


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copy:
    """A database that was restored from an earlier copy, for the events of one pair of services."""

    pair: Services
    service: str
    """The restored service of the pair."""
    until: datetime | None
    """The time up to which the copy has all settled events; None: no row of that time is left."""
    first_run: int | None
    """The latest run that judged no event which the copy lacks; None: none is known."""

    def lacks_what_judged(self, number: int) -> bool:
        """Return whether a run, by its number, has judged events that the copy lacks."""
        return self.first_run is None or number < self.first_run


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
    """The search for copies in what runs, the latest first, knew of the databases."""

    runs: Sequence[JudgedRun]
    databases: Databases
    margin: timedelta
    remains: dict[tuple[str, int], Remains] = field(default_factory=dict)
    """By service and number of a run: pairs share the results of a database."""

    def copy_of(self, service: str, pair: Services) -> _Copy | None:
        """Return the copy from which a service was restored since the latest run of a pair.

        None: no restore. A run without the other service proves a copy as well. But it judged no
        event between the two services, so the search continues.
        """
        copied_before: datetime | None = None
        first_run = None
        for number, run in enumerate(self.runs):
            if service not in run.histories:
                continue
            remains = self._remains_of(service, number)
            if remains.copied_before is not None:
                copied_before = min(remains.copied_before, copied_before or remains.copied_before)
            elif not run.services.issuperset(pair):
                continue
            elif copied_before is None:
                return None
            elif remains.has_settlement:
                first_run = number
                break
        if copied_before is None:
            return None
        last = self.databases.last_settled(service, before=copied_before)
        # Events in flight at the time of the copy arrived, or were settled, after it.
        until = None if last is None else last - self.margin
        return _Copy(pair=pair, service=service, until=until, first_run=first_run)

    def _remains_of(self, service: str, number: int) -> Remains:
        key = service, number
        if key not in self.remains:
            history = self.runs[number].histories[service]
            self.remains[key] = self.databases.remains_of(service, history)
        return self.remains[key]
