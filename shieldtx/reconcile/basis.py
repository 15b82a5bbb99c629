"""On what a run's watermarks rest: what it judged, by which rules, and in which databases.

An incremental run trusts that whatever did not move since a good run is in order still. So it may
start only from a run that looked at the same things in the same databases; after anything else all
is looked at, and the report says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Others
from shieldtx.reconcile.observed import Observed
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase

RULES: Final = 7
"""The generation of rules and selections: what an earlier release called in order may not be."""


def _of_names(others: Any) -> Any:
    """Read what an earlier release stored as well: names of topics and types in one list."""
    return Others.named(*others) if isinstance(others, list) else others


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedService:
    """A service as far as verdicts depend on its configuration."""

    schema: str | None
    retention: timedelta | None
    groups: tuple[ExpectedGroup, ...]
    others: Annotated[Others, BeforeValidator(_of_names)]
    other_sources: tuple[str, ...]
    former_groups: tuple[FormerGroup, ...] = ()
    history: DatabaseHistory | None = None
    """None: of a configuration alone, whose database was not asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """What a run judges."""

    rules: int = RULES
    margin: timedelta
    topics: tuple[str, str] | None
    """Brokers and prefix; None: topics are not read."""
    services: Mapping[str, JudgedService]
    observed: Observed | None = None
    """None: the run has not ended."""
    incomplete_inboxes: Mapping[str, datetime] | None = None
    """By service whose inbox may lack rows of events that have had their effects: from when the
    inbox has all rows. None: of an earlier release, which did not ask, or not asked yet."""


def basis_of(request: ReconcileRequest, histories: Mapping[str, DatabaseHistory]) -> Basis:
    """Return what a request judges, in databases with these `histories`."""
    broker = request.broker
    return Basis(
        margin=request.margin,
        topics=None if broker is None else (broker.bootstrap, broker.topic_prefix),
        services={s.name: _judged(s, histories.get(s.name)) for s in request.services},
    )


def changes(earlier: Basis, now: Basis) -> list[str]:
    """Say in sentences what of the configuration or the rules has changed; empty: nothing."""
    return [*_changes(earlier, now), *other_services(earlier, now)]


def other_services(earlier: Basis, now: Basis) -> list[str]:
    """Say in sentences which services are others, or judged by another configuration."""
    return list(_other_services(earlier, now))


def judged_alike(earlier: Basis, now: Basis) -> frozenset[str]:
    """Return the services of both that are judged by the same configuration."""
    return frozenset(
        name
        for name in earlier.services.keys() & now.services.keys()
        if _is_alike(earlier.services[name], now.services[name])
    )


def configuration_of(text: str) -> str:
    """Return what of a stored basis its configuration and rules decide; the same text: the same.

    The text of another release stands for itself.
    """
    basis = from_json(text)
    if basis is None:
        return text
    services = {name: replace(each, history=None) for name, each in basis.services.items()}
    configured = replace(basis, services=services, observed=None, incomplete_inboxes=None)
    return to_json(replace(configured, services=dict(sorted(services.items()))))


def losses(earlier: Basis, now: Basis) -> list[str]:
    """Say in sentences which databases are others, or have another past; empty: none.

    Whether the newest rows of then are still there is for the databases to say.
    """
    return [
        f"the database of {name} {what}"
        for name, service in now.services.items()
        for what in _other_past(earlier.services[name].history, service.history)
    ]


def clocks_set_back(earlier: Basis, now: Basis, watermarks: Mapping[str, datetime]) -> list[str]:
    """Say in sentences of which databases an earlier run knew times that have not come yet.

    Their clocks were ahead, and were set right. What was settled since then lies before the run's
    `watermarks`, and no run has judged it.
    """
    return [
        f"the clock of the database of {name} was ahead when an earlier run judged it, and was set "
        f"back: that run knew of {latest:%Y-%m-%d %H:%M:%S%z}, and it is "
        f"{history.asked_at:%Y-%m-%d %H:%M:%S%z}"
        for name, service in now.services.items()
        if (history := service.history) is not None and history.asked_at is not None
        if (latest := max(_known_times(earlier, watermarks, name), default=None)) is not None
        if latest > history.asked_at
    ]


def _known_times(
    earlier: Basis, watermarks: Mapping[str, datetime], name: str
) -> Iterator[datetime]:
    history = earlier.services[name].history
    if name in watermarks:
        yield watermarks[name]
    if history is not None:
        yield from (row.settled_at for row in history.latest_settled if row is not None)
        if history.asked_at is not None:
            yield history.asked_at


def to_json(basis: Basis) -> str:
    """Encode a basis, to be stored with its run; it holds no secret."""
    return _BASIS.dump_json(basis).decode()


def from_json(text: str) -> Basis | None:
    """Decode what `to_json` has made; None: by a release that knew another one, or none."""
    try:
        return _BASIS.validate_json(text)
    except ValidationError:
        return None


_BASIS = TypeAdapter(Basis)


def _judged(service: ServiceDatabase, history: DatabaseHistory | None) -> JudgedService:
    return JudgedService(
        schema=service.schema,
        retention=service.retention,
        # The order in which a file names them means nothing.
        groups=tuple(sorted(service.groups or (), key=repr)),
        others=Others(
            topics=tuple(sorted(service.others.topics)),
            event_types=tuple(sorted(service.others.event_types)),
        ),
        other_sources=tuple(sorted(service.other_sources)),
        former_groups=tuple(sorted(service.former_groups, key=str)),
        history=history,
    )


def _changes(earlier: Basis, now: Basis) -> Iterator[str]:
    if earlier.rules != now.rules:
        yield "another release of shieldtx, with other rules, made the earlier runs"
    if earlier.margin != now.margin:
        yield f"the margin was {earlier.margin} and is {now.margin}"
    if earlier.topics != now.topics:
        yield _topics(earlier.topics, now.topics)


def _other_services(earlier: Basis, now: Basis) -> Iterator[str]:
    for name in sorted({*earlier.services, *now.services}):
        before, after = earlier.services.get(name), now.services.get(name)
        if before is None or after is None:
            yield f"service {name} was {'added' if before is None else 'taken out'}"
        elif not _is_alike(before, after):
            yield f"the configuration of service {name} has changed"


def _is_alike(before: JudgedService, after: JudgedService) -> bool:
    return replace(before, history=None) == replace(after, history=None)


def _topics(before: Sequence[str] | None, after: Sequence[str] | None) -> str:
    if before is None:
        return "topics were not read before"
    return "topics were read before" if after is None else "the topics are those of another broker"


def _other_past(before: DatabaseHistory | None, now: DatabaseHistory | None) -> Iterator[str]:
    if before is None or now is None:
        yield "was not asked who it is"
    elif before.system != now.system or before.objects != now.objects:
        yield "is another one, or its tables were recreated"
    elif before.timeline != now.timeline:
        yield "was restored to a point in time, or a replica of it was promoted"
