"""What the stored runs of a configuration have seen, as far as it is of the same databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.basis import Basis
from shieldtx.reconcile.expectations import Received
from shieldtx.reconcile.observed import Past


def past_of(earlier: Iterable[Basis | None], now: Basis) -> Past:
    """Return what earlier runs, the latest first, have seen of the services of a run.

    Each run is stored with what those before it have seen, so the latest one of a service is
    enough. Neither other rules nor another configuration end that. A run of another database says
    nothing: it is a service of the same name in another file, or one whose tables were recreated.
    """
    received: set[Received] = set()
    since: dict[str, Mapping[str, datetime]] = {}
    scopes: list[_Scope] = []
    for basis in earlier:
        if basis is None or basis.observed is None:
            continue
        scope = _scope_of(basis, now)
        received |= {
            seen
            for seen in basis.observed.received
            if scope.has(seen) and not any(later.has(seen) for later in scopes)
        }
        for name in scope.receivers:
            since.setdefault(name, basis.observed.former_since.get(name, {}))
        scopes.append(scope)
        if scope.receivers == now.services.keys():
            break
    return Past(received=tuple(sorted(received, key=repr)), former_since=since)


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


def _scope_of(earlier: Basis, now: Basis) -> _Scope:
    names = frozenset(earlier.services.keys() & now.services.keys())
    return _Scope(
        names=names,
        receivers=frozenset(
            name
            for name in names
            if _is_same(earlier.services[name].history, now.services[name].history)
        ),
    )


def _is_same(before: DatabaseHistory | None, now: DatabaseHistory | None) -> bool:
    if before is None or now is None:
        return False
    return (before.system, before.objects) == (now.system, now.objects)
