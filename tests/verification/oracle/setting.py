"""The participants of a history: services, their events, the receivers, and the nights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Others
from tests.verification.oracle.timeline import DAY

NAMES: Final = ("orders", "stock", "mail", "billing")
ESCAPES_AS_OF_OLD: Final = NAMES[2]
"""The service whose database reads a backslash in a literal as an escape."""
UNDO: Final = "undo"
"""Represents the group of a service that compensates its own events; see `undo_of`."""
LIMIT: Final = 4
"""Attempts of every handler."""
QUICK: Final = 12
"""Minutes until a damaged story is over: shorter than every margin."""
MARGINS: Final = (15, 20, 40)
PART_WITH_OWN_GROUP: Final = 0.2
"""Share of the services."""
PART_WITH_UNHANDLED_TYPE: Final = 0.25
"""Share of the services in every other history."""
PART_PARTLY_DECLARED: Final = 0.2
"""Share of the services that declare one of their types alone to be compensated."""
RETENTIONS: Final = (None, 3 * DAY, 7 * DAY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A consumer group, and the event types that it handles."""

    service: str
    name: str
    upstreams: tuple[str, ...]
    types: tuple[str, ...]
    filtered: bool = False
    """Whether it is declared by its event types; otherwise by its topics alone."""
    is_second: bool = False
    """Whether its service has another group, which handles at least the same types."""
    from_named: bool = False
    """Whether its declaration names the services whose events it should have."""
    undoes: tuple[str, ...] = ()
    """Those of its types whose rollbacks it compensates."""

    def is_for(self, event_type: str) -> bool:
        """Return whether it should have the events of a type, perhaps of an unknown one."""
        source = event_type.partition(".")[0]
        return event_type in self.types if self.filtered else source in self.upstreams

    @property
    def renamed(self) -> str:
        """Return another name, under which nothing was received."""
        return f"{self.name}-new"

    def declared(self, *, mistyped: bool, renamed: bool = False) -> ExpectedGroup:
        """Return the group as a configuration names it."""
        types = self.types if self.filtered else ()
        return ExpectedGroup(
            name=self.renamed if renamed else self.name,
            topics=self.upstreams,
            event_types=tuple(f"{each}s" for each in self.types) if mistyped else types,
            upstreams=self.upstreams if self.from_named else (),
            max_attempts=LIMIT,
        )

    def declared_to_undo(self) -> ExpectedGroup:
        """Return how a configuration declares the compensations of the group."""
        return ExpectedGroup(
            name=self.name,
            kind=TxKind.ROLLBACK,
            of_others=True,
            topics=self.upstreams,
            event_types=self.undoes,
            upstreams=self.upstreams if self.from_named else (),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The configuration and the time of one night."""

    at: float
    margin: int
    retention: dict[str, int | None]
    """Retention by the configuration, in minutes."""
    unknown: frozenset[tuple[str, str]] = frozenset()
    """Groups, by service and name, that the configuration does not name."""
    mistyped: frozenset[tuple[str, str]] = frozenset()
    """Groups whose declaration names an event type that does not exist."""
    renamed: frozenset[tuple[str, str]] = frozenset()
    """Groups whose declaration has another name than their rows."""
    unlisted: frozenset[str] = frozenset()
    """Services whose unhandled type the configuration does not list in `for_others`."""
    renamed_service: str = ""
    """The service whose configuration has another name than its rows; empty: there is none."""

    @property
    def watermark(self) -> float:
        """Return the time after which movements are in flight."""
        return self.at - self.margin

    def horizon(self, *services: str) -> float:
        """Return the time before which rows may be purged in one of these services."""
        called = {self.called(name): kept for name, kept in self.retention.items()}
        kept = [r for r in ((called | self.retention)[s] for s in services) if r is not None]
        return self.at - min(kept) + self.margin if kept else float("-inf")

    def memory(self, service: str) -> float:
        """Return how long a group of a service keeps the row that identifies an event."""
        called = {self.called(name): kept for name, kept in self.retention.items()}
        kept = (called | self.retention)[service]
        return float("inf") if kept is None else max(kept - 2 * self.margin, self.margin)

    def called(self, service: str) -> str:
        """Return the name of a service in the configuration."""
        return f"{service}-new" if service == self.renamed_service else service

    @property
    def as_named(self) -> Judged:
        """Return this night with everything configured under the names of its rows."""
        return replace(self, renamed=frozenset(), renamed_service="")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The services of a history; the topic of each has its name."""

    services: tuple[str, ...]
    groups: tuple[Group, ...]
    retention: dict[str, int | None]
    """The real retention of settled rows, in minutes."""
    declared: bool
    """Whether the configuration names groups; otherwise expectations follow from past receipts."""
    nights: tuple[Judged, ...]
    with_unhandled: tuple[str, ...] = ()
    """Services that write one more type on their topic, which no group handles."""
    partly_declared: tuple[str, ...] = ()
    """Services whose configuration names only one type that their group compensates."""

    def types_of(self, service: str) -> tuple[str, ...]:
        """Return the event types that a service writes, except one that no group handles."""
        return f"{service}.placed", f"{service}.paid"

    def others(self, service: str, night: Judged) -> Others:
        """Return the types for others that a night's configuration declares for a service."""
        if self.unreceived(service):
            return Others.named(service)
        is_listed = service in self.with_unhandled and service not in night.unlisted
        return Others.named(*[unhandled_of(service)] * is_listed)

    def receivers(self, event_type: str) -> list[Group]:
        """Return the groups that handle a type."""
        return [group for group in self.groups if event_type in group.types]

    def undoers(self, event_type: str) -> list[Group]:
        """Return the groups that handle a type of another service, and compensate it."""
        return [group for group in self.groups if event_type in group.undoes]

    def unreceived(self, service: str) -> bool:
        """Return whether no group handles any event of a service."""
        return not any(self.receivers(each) for each in self.types_of(service))

    def expected(self, service: str, night: Judged) -> tuple[ExpectedGroup, ...] | None:
        """Return the groups of a service that a night's configuration names."""
        if not self.declared:
            return None
        named = [
            group.declared(
                mistyped=(service, group.name) in night.mistyped,
                renamed=(service, group.name) in night.renamed,
            )
            for group in self.groups
            if group.service == service and (service, group.name) not in night.unknown
        ]
        left_out = night.mistyped | night.unknown | night.renamed
        undoing = [
            group.declared_to_undo()
            for group in self.groups
            if group.service == service and group.undoes
            if (service, group.name) not in left_out
        ]
        # The upstreams of a group do not determine who may take back its own events.
        upstreams = next((group.upstreams for group in named), ())
        return (
            *named,
            *undoing,
            ExpectedGroup(
                name=undo_of(service),
                kind=TxKind.ROLLBACK,
                event_types=self._compensated(service),
                upstreams=upstreams,
            ),
        )

    def former_groups(self, service: str, night: Judged) -> tuple[FormerGroup, ...]:
        """Return the groups of a service that a night's configuration declares as former ones.

        Without declared groups these are, in the last night, second groups of a service that handle
        fewer types.
        """
        if self.declared or night.renamed_service or night != self.nights[-1]:
            return ()
        first = {group.service: group for group in self.groups if not group.is_second}
        return tuple(
            FormerGroup(name=group.name)
            for group in self.groups
            if group.service == service
            and group.is_second
            and len(group.types) < len(first[service].types)
        )

    def is_left_to_the_past(self, event_type: str) -> bool:
        """Return whether past receipts determine the receivers of a type's rollbacks."""
        named = self._compensated(event_type.partition(".")[0])
        return not self.declared or bool(named and event_type not in named)

    def _compensated(self, service: str) -> tuple[str, ...]:
        """Return the types that a service declares to compensate; empty: all."""
        handled = [each for each in self.types_of(service) if self.receivers(each)]
        # No event of the others is sent, so their names would count as mistyped.
        return tuple(handled[:1]) if service in self.partly_declared else ()


def undo_of(service: str) -> str:
    """Return the name of the group of a service that compensates its own events."""
    return f"{service}-{UNDO}"


def unhandled_of(service: str) -> str:
    """Return the type of a service's events that no group handles."""
    return f"{service}.noted"


def a_setting(r: Random, *, most_services: int = 4) -> Setting:
    """Choose services, groups and two to four nights, with changes of the configuration between."""
    services = NAMES[: r.randint(2, most_services)]
    setting = Setting(
        services=services,
        groups=(),
        retention={service: r.choice(RETENTIONS) for service in services},
        declared=r.random() < 0.8,
        nights=(),
        with_unhandled=_some(r, services, PART_WITH_UNHANDLED_TYPE) if r.random() < 0.5 else (),
        partly_declared=_some(r, services, PART_PARTLY_DECLARED),
    )
    groups = [group for service in services[1:] for group in _groups(r, setting, service)]
    if r.random() < 0.5:
        groups += _groups(r, setting, services[0])
    groups += [_own_group(setting, name) for name in services if r.random() < PART_WITH_OWN_GROUP]
    setting = replace(setting, groups=tuple(groups))
    # Where no group handles any event of a service, its topic is for others as a whole.
    received = tuple(n for n in setting.with_unhandled if not setting.unreceived(n))
    setting = replace(setting, with_unhandled=received)
    return replace(setting, nights=_nights(r, setting, groups))


def _groups(r: Random, setting: Setting, service: str) -> list[Group]:
    others = [name for name in setting.services if name != service]
    upstreams = tuple(sorted(r.sample(others, r.randint(1, len(others)))))
    if service == setting.services[1]:
        # The events of the first service always have a receiver.
        upstreams = tuple(sorted({*upstreams, setting.services[0]}))
    types = tuple(each for u in upstreams for each in setting.types_of(u))
    first = Group(
        service=service,
        name=f"{service}-apply",
        upstreams=upstreams,
        types=types,
        # Declared by its topics, it would be expected to receive the unhandled type.
        filtered=any(name in setting.with_unhandled for name in upstreams),
        from_named=r.random() < 0.3,
        undoes=_some(r, types),
    )
    if r.random() < 0.5:
        return [first]
    some = tuple(sorted(r.sample(types, r.randint(1, len(types)))))
    audit = Group(
        service=service,
        name=f"{service}-audit",
        upstreams=tuple(sorted({each.partition(".")[0] for each in some})),
        types=some,
        filtered=True,
        is_second=True,
        undoes=_some(r, some),
    )
    return [first, audit]


def _own_group(setting: Setting, service: str) -> Group:
    """Return a group that handles all events of its own service, and compensates them."""
    return Group(
        service=service,
        name=undo_of(service),
        upstreams=(service,),
        types=setting.types_of(service),
        filtered=service in setting.with_unhandled,
    )


def _some(r: Random, names: tuple[str, ...], part: float = 0.3) -> tuple[str, ...]:
    return tuple(each for each in names if r.random() < part)


def _nights(r: Random, setting: Setting, groups: list[Group]) -> tuple[Judged, ...]:
    night = Judged(
        at=r.randint(3, 9) * DAY + 0.5,
        margin=r.choice(MARGINS),
        retention=setting.retention,
        unknown=frozenset((g.service, g.name) for g in groups if g.is_second and r.random() < 0.3),
        unlisted=frozenset(_some(r, setting.with_unhandled)),
    )
    audits = [(g.service, g.name) for g in groups if g.is_second]
    nights = [night]
    for _ in range(r.randint(1, 3)):
        night = replace(night, at=night.at + r.choice((DAY // 2, DAY, DAY, 2 * DAY)))
        is_mistyped = setting.declared and audits and r.random() < 0.1
        night = replace(night, mistyped=frozenset([r.choice(audits)] if is_mistyped else []))
        is_renamed = setting.declared and not is_mistyped and r.random() < 0.05
        one = r.choice([group for group in groups if group.name != undo_of(group.service)])
        is_renamed = is_renamed and (one.service, one.name) not in night.unknown
        names = [(one.service, one.name)] if is_renamed else []
        # A service that receives and writes has rows in every night.
        service = r.choice([one.service, *one.upstreams]) if r.random() < 0.03 else ""
        night = replace(night, renamed=frozenset(names), renamed_service=service)
        if r.random() < 0.2:
            night = replace(night, margin=r.choice(MARGINS))
        if r.random() < 0.2:
            night = replace(night, unlisted=frozenset(_some(r, setting.with_unhandled)))
        if night.unknown and r.random() < 0.5:
            night = replace(night, unknown=frozenset())
        nights.append(night)
    return tuple(nights)
