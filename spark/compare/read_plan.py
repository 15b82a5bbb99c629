"""The rows that a run compares, and the way to read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from shieldtx.reconcile.expectations import Expectation, Received, Route, Sent, Stream
from shieldtx.reconcile.mistyped_names import mistyped_names
from shieldtx.reconcile.observed import remembered, undeclared_kinds
from shieldtx.reconcile.routes import expectation_of, expected_by_the_past, unreceived
from shieldtx.reconcile.window import Window

from ..sources import incremental, outbox_inbox
from ..sources.driver_frames import routes_frame
from ..sources.former_groups import applied_by_former_groups
from ..sources.jdbc import Databases
from ..sources.purged_upstream import Arrival, counted, left_in_inbox
from ..sources.row_filters import NOTHING, Read
from ..sources.taken_back import taken_back
from ..sources.unsent_types import unsent_types
from . import digest_comparison
from .digest_comparison import Compared
from .digests import Digests
from .partners import partners_of, rows_of, with_arrivals, with_events
from .transforms import paired


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The rows that must be read to judge all selected events."""

    outboxes: Mapping[str, Read]
    inboxes: Mapping[str, Read]
    expectation: Expectation | None = None
    """None: the expectation depends on the rows that are read."""
    past: Sequence[Received] = ()
    """Past receipts; at least those that define expectations."""
    sent: frozenset[Sent] | None = None
    """The types of the events in the outboxes; None: not all outbox rows were searched."""
    compared: Sequence[Compared] | None = None
    """The comparison of digests; None: no digests were compared."""

    @property
    def is_whole(self) -> bool:
        """Return whether all rows of all tables are read."""
        return all(read.is_everything for read in (*self.outboxes.values(), *self.inboxes.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedReads:
    """The rows of all outboxes and inboxes that a run judges."""

    expectation: Expectation
    received: frozenset[Received]
    """The receipts of groups, as far as these rows and earlier queries show them."""
    pairs: DataFrame
    """Each event with the inbox row of each group that has it or should have it."""


def plan_of(databases: Databases, digests: Digests | None) -> Plan:
    """Return the rows to read; with digests, only the rows that these leave open."""
    if digests is not None:
        return _plan_by_digests(databases, digests)
    services, selection = databases.services, databases.request.selection
    plan = Plan(
        outboxes={s.name: incremental.read_of_outbox(selection, s.name) for s in services},
        inboxes={s.name: incremental.read_of_inbox(selection, s.name) for s in services},
    )
    if plan.is_whole:
        sent = [t for s in services for t in outbox_inbox.types_sent(databases, s)]
        received = [t for s in services for t in outbox_inbox.types_received(databases, s)]
        expectation = _expectation(databases, sent, received)
        return replace(plan, expectation=expectation, sent=frozenset(sent), past=received)
    # Looking up the types of all rows is a scan of the whole table.
    past = [
        type_
        for service in services
        for type_ in outbox_inbox.types_received(
            databases, service, undeclared_kinds(service.member)
        )
    ]
    if selection.moved_since:
        plan = _with_taken_back(databases, plan)
    return replace(plan, past=past)


def _with_taken_back(databases: Databases, plan: Plan) -> Plan:
    """Add the rows of events whose rollbacks are read, for all groups that have them."""
    events = taken_back(databases, plan.outboxes, plan.inboxes)
    every_id = {event_id for ids in events.values() for event_id in ids}
    return replace(
        plan,
        outboxes={
            name: read.or_ids("o", events.get(name, ())) for name, read in plan.outboxes.items()
        },
        inboxes={name: read.or_ids("i", every_id) for name, read in plan.inboxes.items()},
    )


def without_purged_events(
    databases: Databases, plan: Plan, digests: Digests, windows: Mapping[Stream, Window]
) -> Plan:
    """Return a plan that only counts the inbox rows of events that outboxes have purged.

    `windows` may be earlier than the windows in which the events are judged, but not later.
    """
    found: dict[tuple[str, Arrival], int] = {}
    inboxes = dict(plan.inboxes)
    for service in databases.services:
        read = inboxes.get(service.name, NOTHING)
        condition = left_in_inbox(service.name, digests.oldest, windows)
        if read is NOTHING or condition is None:
            continue
        counts = counted(databases, service, condition)
        if counts:
            found |= {(service.name, arrival): events for arrival, events in counts.items()}
            inboxes[service.name] = replace(read, condition=f"NOT {condition}")
    compared = [
        replace(each, too_old=found.get(_arrival(each.route), 0)) for each in plan.compared or ()
    ]
    return replace(plan, inboxes=inboxes, compared=compared)


def planned_reads(databases: Databases, plan: Plan) -> PlannedReads:
    """Return the planned rows, and the rows that belong to them."""
    sent = rows_of(databases, outbox_inbox.outbox, plan.outboxes)
    received = rows_of(databases, outbox_inbox.inbox, plan.inboxes)
    if plan.expectation is None:
        return _with_partners(databases, plan, sent.persist(), received.persist())
    # No partner is missing if all rows are read, or if digests were compared: a partner in order
    # makes the digests of its bucket differ, and an odd partner is read by its id.
    pairs = paired(sent, received, *_routes_and_applied(databases, plan.expectation))
    return PlannedReads(
        expectation=plan.expectation,
        received=frozenset(plan.past),
        pairs=pairs if plan.compared is None else digest_comparison.to_read(pairs, plan.compared),
    )


def _with_partners(
    databases: Databases, plan: Plan, sent: DataFrame, received: DataFrame
) -> PlannedReads:
    """Derive expectations from the rows, and look up the partners that the plan has left out."""
    types = outbox_inbox.types_in(sent, received)
    expectation = _expectation_by(databases, plan, types)
    of_groups = _kept(_routes_and_applied(databases, expectation))
    pairs = paired(sent, received, *of_groups)
    ids = partners_of(databases, pairs)
    if ids is not None:
        sent, more_sent = with_events(databases, sent, ids.outboxes)
        received, more_received = with_arrivals(databases, received, ids.inboxes)
        # A group without changes may have received types that occur in none of these rows.
        if more := outbox_inbox.types_in(more_sent, more_received) - types:
            types = types | more
            expectation = _expectation_by(databases, plan, types)
            of_groups = _kept(_routes_and_applied(databases, expectation))
        pairs = paired(sent, received, *of_groups)
    return PlannedReads(
        expectation=expectation,
        received=frozenset([*plan.past, *(t for t in types if isinstance(t, Received))]),
        pairs=pairs,
    )


def _plan_by_digests(databases: Databases, found: Digests) -> Plan:
    types = {*found.groups, *found.odd_types}
    sent = [each for each in types if isinstance(each, Sent)]
    received = [each for each in types if isinstance(each, Received)]
    expectation = _expectation(databases, sent, received)
    compared = digest_comparison.compared(found, expectation.routes)
    outboxes, inboxes = digest_comparison.reads(found, compared)
    return Plan(
        outboxes=outboxes,
        inboxes=inboxes,
        expectation=expectation,
        compared=compared,
        sent=frozenset(sent),
        past=received,
    )


def _expectation(
    databases: Databases,
    sent: Collection[Sent],
    received: Collection[Received],
    *,
    sent_is_all: bool = True,
) -> Expectation:
    members = databases.request.members
    past = remembered(members, databases.request.past)
    known = {*received, *past}
    found = expectation_of(members, sent=set(sent), received=known)
    if unsent := unsent_types(databases, unreceived(members, set(sent), found.routes)):
        # No event of these types has been sent, so no group can lack one.
        found = expectation_of(members, sent={*sent} - unsent, received=known)
    remarks = expected_by_the_past(found.routes, sent, set(past).difference(received))
    found = replace(found, remarks=tuple(remarks))
    if not sent_is_all:
        return found
    unfit = mistyped_names(members, sent, [*received, *databases.request.past.received])
    return replace(found, obstacles=(*found.obstacles, *unfit))


def _arrival(route: Route) -> tuple[str, Arrival]:
    """Return the service of a route's group, and the key of the route's inbox rows."""
    stream = route.stream
    return stream.downstream, (stream.upstream, route.group, route.topic, route.event_type)


_RoutesAndApplied = tuple[DataFrame, DataFrame | None]


def _routes_and_applied(databases: Databases, expectation: Expectation) -> _RoutesAndApplied:
    """Return the routes, and the events that their former groups have applied; see `paired`."""
    routes = expectation.routes
    return routes_frame(databases.spark, routes), applied_by_former_groups(databases, routes)


def _kept(found: _RoutesAndApplied) -> _RoutesAndApplied:
    """Persist frames that are read more than once."""
    routes, applied = found
    return routes, None if applied is None else applied.persist()


def _expectation_by(
    databases: Databases, plan: Plan, types: Collection[Sent | Received]
) -> Expectation:
    """Return the expectation for the rows that are read, from past receipts and from these rows."""
    sent = [each for each in types if isinstance(each, Sent)]
    received = [each for each in types if isinstance(each, Received)]
    return _expectation(databases, sent, [*plan.past, *received], sent_is_all=False)
