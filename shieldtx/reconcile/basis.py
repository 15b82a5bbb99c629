"""The basis of a run's watermarks: what the run judged, by which rules, and in which databases.

An incremental run assumes that rows without changes since a good run are still in order. So it may
start only from a run that judged the same services in the same databases. After any change the run
is a full one, and the report states the reason.
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
"""The generation of rules and selections. A verdict of an earlier generation may not hold any more.
"""


def _of_names(others: Any) -> Any:
    """Accept the format of earlier releases as well: topics and types in one list of names."""
    return Others.named(*others) if isinstance(others, list) else others


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedService:
    """The configuration of a service, as far as verdicts depend on it."""

    schema: str | None
    retention: timedelta | None
    groups: tuple[ExpectedGroup, ...]
    others: Annotated[Others, BeforeValidator(_of_names)]
    other_sources: tuple[str, ...]
    former_groups: tuple[FormerGroup, ...] = ()
    history: DatabaseHistory | None = None
    """None: the basis describes a configuration only, and the database was not queried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """All that determines the verdicts of a run."""

    rules: int = RULES
    margin: timedelta
    topics: tuple[str, str] | None
    """Brokers and prefix; None: topics are not read."""
    services: Mapping[str, JudgedService]
    observed: Observed | None = None
    """None: the run has not ended."""
    incomplete_inboxes: Mapping[str, datetime] | None = None
    """By service whose inbox may lack rows of applied events: the time from which the inbox has all
    rows. None: not checked yet, or stored by an earlier release without this check."""


def basis_of(request: ReconcileRequest, histories: Mapping[str, DatabaseHistory]) -> Basis:
    """Return the basis of a request, in databases with these `histories`."""
    broker = request.broker
    return Basis(
        margin=request.margin,
        topics=None if broker is None else (broker.bootstrap, broker.topic_prefix),
        services={s.name: _judged(s, histories.get(s.name)) for s in request.services},
    )


def changes(earlier: Basis, now: Basis) -> list[str]:
    """Return the changes of the configuration and the rules as sentences; empty if none."""
    return [*_changes(earlier, now), *other_services(earlier, now)]


def other_services(earlier: Basis, now: Basis) -> list[str]:
    """Return sentences for services that were added, removed or configured differently."""
    return list(_other_services(earlier, now))


def judged_alike(earlier: Basis, now: Basis) -> frozenset[str]:
    """Return the services that both runs judge by the same configuration."""
    return frozenset(
        name
        for name in earlier.services.keys() & now.services.keys()
        if _is_alike(earlier.services[name], now.services[name])
    )


def configuration_of(text: str) -> str:
    """Return the configuration and the rules of a stored basis, in a form that can be compared.

    A text of an incompatible release is returned unchanged.
    """
    basis = from_json(text)
    if basis is None:
        return text
    services = {name: replace(each, history=None) for name, each in basis.services.items()}
    configured = replace(basis, services=services, observed=None, incomplete_inboxes=None)
    return to_json(replace(configured, services=dict(sorted(services.items()))))


def losses(earlier: Basis, now: Basis) -> list[str]:
    """Return sentences for databases that were replaced or have another history; empty if none.

    Only the databases themselves show whether the newest rows of the earlier run still exist.
    """
    return [
        f"the database of {name} {what}"
        for name, service in now.services.items()
        for what in _other_past(earlier.services[name].history, service.history)
    ]


def clocks_set_back(earlier: Basis, now: Basis, watermarks: Mapping[str, datetime]) -> list[str]:
    """Return sentences for databases whose current time is before a time that an earlier run noted.

    The clock of such a database was ahead, and was corrected. Rows that were settled since then lie
    before the run's `watermarks`, and no run has judged them.
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
    """Encode a basis, to be stored with its run; the text has no secret."""
    return _BASIS.dump_json(basis).decode()


def from_json(text: str) -> Basis | None:
    """Decode a stored basis; None if there is none or an incompatible release stored it."""
    try:
        return _BASIS.validate_json(text)
    except ValidationError:
        return None


_BASIS = TypeAdapter(Basis)


def _judged(service: ServiceDatabase, history: DatabaseHistory | None) -> JudgedService:
    return JudgedService(
        schema=service.schema,
        retention=service.retention,
        # The order of the groups in the file has no meaning.
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
