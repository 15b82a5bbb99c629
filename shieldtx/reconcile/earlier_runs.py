"""The observations of stored runs, as far as they come from the same databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.basis import Basis
from shieldtx.reconcile.expectations import Received
from shieldtx.reconcile.observed import Past

CARRIED_ON_SINCE: Final = 7
"""The first generation of rules whose runs are stored with the observations of the runs before
them."""
MOST_ADDED: Final = 1_000
"""The most runs of earlier releases that are read: more than there are after a return to such a
release."""


def past_of(earlier: Iterable[Basis | None], now: Basis) -> Past:
    """Return what earlier runs of one name observed of a run's services.

    `earlier` begins with the latest run. Each run is stored with the observations of the runs
    before it. So the latest run of a service is enough, also after a change of rules or
    configuration. A run of another database is ignored: it is a service of the same name in another
    file, or its tables were recreated.

    A run of an earlier release is stored only with the inbox contents of that night. The run adds
    these and does not end the search. Where no other run is left, the latest such run counts.
    """
    memory = _Memory()
    for basis in earlier:
        if basis is None or basis.observed is None:
            continue
        memory.add(basis, _scope_of(basis, now))
        if memory.is_whole_of(now.services.keys()) or len(memory.added) >= MOST_ADDED:
            break
    return memory.past()


def together(own: Past, others: Iterable[Past]) -> Past:
    """Return the observations of several names: the own name, and the others, the latest first.

    The own name decides since when a group is a former one, and whether it is a former one at all.
    A file that does not list a group has no information about it: the latest name that lists it
    decides.
    """
    received = set(own.received)
    since: dict[str, Mapping[str, datetime]] = {}
    for past in others:
        received.update(past.received)
        for service, groups in past.former_since.items():
            since[service] = {**groups, **since.get(service, {})}
    return Past(
        received=tuple(sorted(received, key=repr)), former_since={**since, **own.former_since}
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scope:
    """The services about which an earlier run has information."""

    names: frozenset[str]
    """Services in both runs."""
    receivers: frozenset[str]
    """Services of `names` whose inboxes are in the same databases."""

    def has(self, seen: Received) -> bool:
        writer = seen.causation_source or seen.source
        return seen.downstream in self.receivers and {seen.source, writer} <= self.names


@dataclass(kw_only=True, slots=True)
class _Memory:
    """The observations that have been read so far, from the latest run back."""

    received: set[Received] = field(default_factory=set)
    since: dict[str, Mapping[str, datetime]] = field(default_factory=dict)
    scopes: list[_Scope] = field(default_factory=list)
    """The scopes of the runs that are stored with the observations of the runs before them."""
    added: list[tuple[_Scope, set[Received]]] = field(default_factory=list)
    """Runs of earlier releases that came, or may have come, after a run of `scopes`."""

    def add(self, basis: Basis, scope: _Scope) -> None:
        """Add one more run, which took place before all runs added so far."""
        observed = basis.observed
        if observed is None:
            return
        new = {
            seen
            for seen in observed.received
            if scope.has(seen) and not any(later.has(seen) for later in self.scopes)
        }
        if basis.rules < CARRIED_ON_SINCE:
            self.added.append((scope, new))
            return
        self.received |= new
        for name in scope.receivers:
            self.since.setdefault(name, observed.former_since.get(name, {}))
        self.scopes.append(scope)

    def is_whole_of(self, services: Iterable[str]) -> bool:
        """Return whether no earlier run can add observations of these services."""
        return any(scope.receivers >= set(services) for scope in self.scopes)

    def past(self) -> Past:
        """Return all observations."""
        received = self.received | self._of_earlier_releases()
        return Past(received=tuple(sorted(received, key=repr)), former_since=self.since)

    def _of_earlier_releases(self) -> set[Received]:
        """Return what these runs add; only the latest one's where no other run is before it."""
        found: set[Received] = set()
        later: list[_Scope] = []
        for scope, added in self.added:
            found |= {
                seen
                for seen in added
                if any(each.has(seen) for each in self.scopes)
                or not any(each.has(seen) for each in later)
            }
            later.append(scope)
        return found


def _scope_of(earlier: Basis, now: Basis) -> _Scope:
    names = frozenset(earlier.services.keys() & now.services.keys())
    return _Scope(names=names, receivers=same_databases(earlier, now))


def same_databases(earlier: Basis, now: Basis) -> frozenset[str]:
    """Return the services of both whose tables are the same, restored or not."""
    return frozenset(
        name
        for name in earlier.services.keys() & now.services.keys()
        if _is_same(earlier.services[name].history, now.services[name].history)
    )


def _is_same(before: DatabaseHistory | None, now: DatabaseHistory | None) -> bool:
    if before is None or now is None or before.objects != now.objects:
        return False
    # A role may gain or lose the right to query the system identifier: the system is the same.
    return before.system is None or now.system is None or before.system == now.system
