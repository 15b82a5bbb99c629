"""The groups that should receive a service's events, by the databases and the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from shieldtx.domain.states import TxKind
from shieldtx.ports.repair import RepairStore
from shieldtx.reconcile.expectations import Sent
from shieldtx.reconcile.repair.decisions import Policy


class Receivers:
    """The groups of all services that take part: by past receipts, or by the configuration."""

    def __init__(self, source: str, stores: Mapping[str, RepairStore], policy: Policy) -> None:
        """Look up the receivers of one service's COMMIT events."""
        self._source = source
        self._stores = stores
        self._policy = policy

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Return all groups, each with its service."""
        seen = {(name, group) for name, types in self._past.items() for group, _ in types}
        named = {
            (name, group.name)
            for name in self._stores
            for group in self._policy.groups.get(name, ())
        }
        return sorted(seen | named)

    def takes(self, service: str, group: str, *, topic: str, event_type: str) -> bool:
        """Return whether a group should receive events of a type."""
        if (group, event_type) in self._past[service]:
            return True
        what = Sent(upstream=self._source, kind=TxKind.COMMIT, topic=topic, event_type=event_type)
        return any(
            named.name == group and named.kind is what.kind and named.takes(what, service=service)
            for named in self._policy.groups.get(service, ())
        )

    @cached_property
    def _past(self) -> Mapping[str, set[tuple[str, str]]]:
        return {name: store.receivers(self._source) for name, store in self._stores.items()}
