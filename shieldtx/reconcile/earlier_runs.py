"""What stored runs have seen, as far as it is of the same databases."""

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
"""The first generation of rules whose runs are stored with what those before them have seen."""
MOST_ADDED: Final = 1_000
"""Runs of earlier releases that are read: more than there are in a time of going back to one."""


def past_of(earlier: Iterable[Basis | None], now: Basis) -> Past:
    """Return what earlier runs of one name, the latest first, have seen of the services of a run.

    Each run is stored with what those before it have seen, so the latest one of a service is
    enough. Neither other rules nor another configuration end that. A run of another database says
    nothing: it is a service of the same name in another file, or one whose tables were recreated.

    A run of an earlier release is stored with what inboxes had in that night alone. It adds that
    and ends nothing. Where no other run is left, the latest such run counts.
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
    """Return what runs of several names have seen: the own name, and others, the latest first.

    Since when a group is a former one, the own name says, also that it was none. A file of another
    name that does not list a group knows nothing of it: the latest one decides that lists it.
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
    """Of which services an earlier run speaks."""

    names: frozenset[str]
    """Those that took part in it and take part now."""
    receivers: frozenset[str]
    """Those of them whose inboxes are in the same databases."""

    def has(self, seen: Received) -> bool:
        writer = seen.causation_source or seen.source
        return seen.downstream in self.receivers and {seen.source, writer} <= self.names


@dataclass(kw_only=True, slots=True)
class _Memory:
    """What has been read of it so far, from the latest run on."""

    received: set[Received] = field(default_factory=set)
    since: dict[str, Mapping[str, datetime]] = field(default_factory=dict)
    scopes: list[_Scope] = field(default_factory=list)
    """Of the runs that are stored with what those before them have seen."""
    added: list[tuple[_Scope, set[Received]]] = field(default_factory=list)
    """By runs of earlier releases that came after such a run, or may have."""

    def add(self, basis: Basis, scope: _Scope) -> None:
        """Read one more run, which was before all others."""
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
        """Whether no earlier run can say more of these services."""
        return any(scope.receivers >= set(services) for scope in self.scopes)

    def past(self) -> Past:
        """Return all of it."""
        received = self.received | self._of_earlier_releases()
        return Past(received=tuple(sorted(received, key=repr)), former_since=self.since)

    def _of_earlier_releases(self) -> set[Received]:
        """Return what all of them add, or the latest one where no other run is before it."""
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
    """Return the services of both whose tables are the same ones, restored or not."""
    return frozenset(
        name
        for name in earlier.services.keys() & now.services.keys()
        if _is_same(earlier.services[name].history, now.services[name].history)
    )


def _is_same(before: DatabaseHistory | None, now: DatabaseHistory | None) -> bool:
    if before is None or now is None or before.objects != now.objects:
        return False
    # A role may be granted the right to ask for the system, or lose it: that is no other system.
    return before.system is None or now.system is None or before.system == now.system
