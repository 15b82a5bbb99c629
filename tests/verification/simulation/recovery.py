"""The end of a world: its faults heal, its services drain, its retentions purge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shieldtx.domain.states import INBOX, OUTBOX
from shieldtx.relay.relay import Relay
from tests.verification.simulation import half_messages, removed_type
from tests.verification.simulation.assembly import RELAY_LEASE, RETENTION
from tests.verification.simulation.database import InboxRow, OutboxRow
from tests.verification.simulation.parked_events import MOST_REPLAYS, replay_all
from tests.verification.simulation.processes import Process
from tests.verification.simulation.retention import is_needed
from tests.verification.simulation.second_source import SOURCE

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

MOST_PASSES = 100
"""After this many consecutive passes, a worker with remaining work will never finish."""

MOST_ROUNDS = 30
MOST_ROUNDS_WITH_BREAKER = 120
"""Each failure may pause a handler again, until its first probe."""

ROUND, LONG_ROUND = 3.0, 60.0
"""Seconds between two rounds, and after MOST_ROUNDS: the wait for a probe may be 5 minutes."""


def heal(world: World) -> None:
    """End all faults; their earlier losses, kills and delays remain."""
    world.say("everything heals")
    world.is_calm = True
    while world.sleeping:
        world.wake()
    world.broker.is_down = False
    world.land()
    while world.overdue:
        world.arrive()
    for member in world.dead:
        world.broker.leave(member)
    world.dead.clear()


def drain(world: World) -> bool:
    """Let the services run until no work is left; return False if that fails.

    Each of two services on one schema owns shards with events of the other one. Events of one drain
    when an operator stops the relays of the other one. Events without a handler drain when all
    others have and a release has their handler again.
    """
    sources = [""]
    if world.config.notices:
        sources = ["A", SOURCE] if world.schedule.chance(0.5) else [SOURCE, "A"]
    is_drained = all(_drain(world, stopped=source) for source in sources) and _handle_all(world)
    if not is_drained or not world.config.parks or not world.schedule.chance(0.7):
        return is_drained
    return _replay_parked_events(world)


def _replay_parked_events(world: World) -> bool:
    """Replay what is parked until nothing is: without faults, each replay has all its attempts."""
    for _ in range(MOST_REPLAYS):
        if not replay_all(world):
            return True
        if not _drain(world, stopped=""):
            return False
    return not replay_all(world)


def _handle_all(world: World) -> bool:
    world.consumers += removed_type.declare_again(world)
    left = world.b.inbox.values()
    for _ in range(MOST_ROUNDS):
        _work_off(world, world.consumers)
        if not any(map(removed_type.is_left, left)):
            return True
        world.pass_time(3.0)
    return False


def _drain(world: World, *, stopped: str) -> bool:
    for relay in world.relays_of.get(stopped, ()):
        world.stop(relay)
    world.pass_time(RELAY_LEASE.total_seconds() + 1)
    has_breaker = world.config.breaker is not None
    for n in range(MOST_ROUNDS_WITH_BREAKER if has_breaker else MOST_ROUNDS):
        _work_off(world, world.checking)
        half_messages.decide(world)
        busy = _relays_with_work(world, but=stopped)
        for relay in busy:
            world.renew(relay)
        _work_off(world, [*busy, *world.consumers])
        if _is_drained(world, but=stopped):
            return True
        world.pass_time(ROUND if n < MOST_ROUNDS else LONG_ROUND)
    return False


def _work_off(world: World, processes: Sequence[Process[Any]]) -> None:
    for process in processes:
        for _ in range(MOST_PASSES):
            if not world.work(process):
                break


def _relays_with_work(world: World, *, but: str) -> list[Process[Relay]]:
    """Return the relays of the sources with open rows, `but` those of one source."""
    sources = {row.envelope.source for row in _open_rows(world)} - {but}
    found = [relays for source, relays in world.relays_of.items() if source in sources]
    return [relay for relays in found for relay in relays]


def _is_drained(world: World, *, but: str) -> bool:
    """Return whether no row is open, `but` those of one source, and no record is unread."""
    received = [row for database in world.databases.values() for row in database.inbox.values()]
    return (
        all(row.envelope.source == but for row in _open_rows(world))
        and all(row.settled_at is not None or removed_type.is_left(row) for row in received)
        and all(consumer.service.has_caught_up() for consumer in world.consumers)
    )


def _open_rows(world: World) -> list[OutboxRow]:
    written = [row for database in world.databases.values() for row in database.outbox.values()]
    return [row for row in written if row.settled_at is None]


def purge(world: World) -> None:
    """Let all retention times pass, and run the retentions over the tables."""
    world.pass_time(RETENTION.total_seconds() + 60)
    for _ in range(20):
        for retention in world.retentions:
            world.work(retention)
        if not purgeable(world):
            return


def purgeable(world: World) -> list[OutboxRow | InboxRow]:
    """Return the rows that are not needed any more after their retention."""
    return [
        row
        for database in world.databases.values()
        for rows, purgeable in (
            (database.outbox.values(), OUTBOX.purgeable),
            (database.inbox.values(), INBOX.purgeable),
        )
        for row in rows
        if row.status in purgeable and not is_needed(database, row)
    ]
