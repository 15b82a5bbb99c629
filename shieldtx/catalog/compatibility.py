"""The changes between two catalogs of a service, and whether code of both can run together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from shieldtx.catalog.catalog import Catalog, CatalogEntry, Direction
from shieldtx.catalog.readability import misfits
from shieldtx.domain.states import TxKind


class Compatibility(StrEnum):
    """Which side must read what the other one wrote; the words of schema registries."""

    BACKWARD = "backward"
    """New code reads events of old code."""
    FORWARD = "forward"
    """Old code reads events of new code."""
    FULL = "full"
    """Both."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of one entry."""

    entry: str
    """The name of the entry."""
    problem: str
    breaks: bool
    """Whether events would be lost or refused: other changes only need attention."""


def changes(old: Catalog, new: Catalog, wanted: Compatibility) -> list[Change]:
    """Return the changes from one catalog to another; compatible changes of schemas are omitted.

    Payloads of one version must fit in the `wanted` direction. A new version is no break: upcasters
    and the readers' version decide.
    """
    after = {entry.identity: entry for entry in new.entries}
    found: list[Change] = []
    for entry in old.sent() if new.only_sent else old.entries:
        successor = after.get(entry.identity)
        if successor is not None:
            found += _changes_of(entry, successor, wanted)
        else:
            found.append(_removed(entry))
    return found


def _removed(entry: CatalogEntry) -> Change:
    is_sent = entry.direction is Direction.SEND
    problem = (
        "is no longer sent"
        if is_sent
        else "is no longer handled: events in its topic and inbox stay without an effect"
    )
    is_obligation = not is_sent and entry.kind is TxKind.COMMIT
    return Change(entry=entry.name, problem=problem, breaks=is_obligation)


def _changes_of(old: CatalogEntry, new: CatalogEntry, wanted: Compatibility) -> Iterator[Change]:
    if old.address is not None and new.address is not None and old.address != new.address:
        yield Change(
            entry=new.name,
            problem=f"moves from topic {old.address} to {new.address}",
            breaks=True,
        )
    if new.version < old.version:
        yield Change(
            entry=new.name,
            problem=f"version {new.version} is older than version {old.version}",
            breaks=True,
        )
    elif new.version > old.version:
        yield Change(
            entry=new.name,
            problem=f"version {old.version} becomes {new.version}: release the readers first",
            breaks=False,
        )
    else:
        yield from _misfits_of(old, new, wanted)


def _misfits_of(old: CatalogEntry, new: CatalogEntry, wanted: Compatibility) -> Iterator[Change]:
    """Yield where payloads of one version do not fit.

    Old payloads lie in topics and tables. A received event is written by another service: what the
    old code accepted, the new code must accept.
    """
    is_sent = new.direction is Direction.SEND
    if wanted is not Compatibility.FORWARD or not is_sent:
        for misfit in misfits(old.schema, new.schema):
            yield Change(entry=new.name, problem=f"{misfit} (old events, new code)", breaks=True)
    if wanted is not Compatibility.BACKWARD and is_sent:
        for misfit in misfits(new.schema, old.schema):
            yield Change(entry=new.name, problem=f"{misfit} (new events, old code)", breaks=True)
