"""Counts violations from the broker's log, the ledgers and the history of status changes.

No status column counts as evidence: a status shows the view of the services, the rest the facts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from tests.support.transitions import is_unrepaired
from tests.verification.simulation.broker import ids_by_place
from tests.verification.simulation.database import Change, Database, OutboxRow
from tests.verification.simulation.recovery import purgeable
from tests.verification.simulation.second_source import PREFIXES

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

WITHHELD = "withheld for an operator"
_DIED = "the last attempt ended"
EXPECTED_ERRORS = (
    "Failure:",
    "Defect:",
    "Refused:",
    "DatabaseError:",
    "Overdue:",
    "Blocked:",
    "HandlerError:",
    "NothingToCompensate:",
    "ErrorInside",
    _DIED,
)


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant of the promise, and where it is violated."""

    invariant: str
    """I1 no ghost, I2 no loss, I3 one effect, I4 order, I5 one outcome, I8 drain, I9 legal."""
    statement: str


def violations(world: World, *, is_drained: bool, is_purged: bool = False) -> Sequence[Violation]:
    """Return all violations of a world that has been healed and drained."""
    look = _Look(world)
    found = [
        *look.ghosts(),
        *look.losses(),
        *look.misplaced(),
        *look.doubles(),
        *look.inversions(),
        *look.outcomes(),
        *look.given_up_too_early(),
        *look.purged_too_early(),
        *look.badly_paused(),
        *look.illegal(),
        *look.strange_errors(),
    ]
    if not is_drained:
        found += look.backlog()
    if is_purged:
        found += look.left_by_the_purge()
    return found


class _Look:
    """The check of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._logs = ids_by_place(world.broker)
        self._published = {event_id for ids in self._logs.values() for event_id in ids}
        self._written: dict[str, tuple[str, OutboxRow]] = {
            str(event_id): (service, row)
            for service, database in world.databases.items()
            for event_id, row in database.written.items()
        }
        self._sent = {
            number: world.a.written[event_id]
            for number, event_id in world.events.items()
            if event_id in world.a.written
        }
        self._entries: Counter[tuple[str, int]] = Counter(
            (entry.what, entry.transfer)
            for database in world.databases.values()
            for entry in database.ledger
        )
        self._failed = {
            change.event_id
            for database in world.databases.values()
            for change in database.history
            if change.target == OutboxStatus.FAILED
        }
        self._was_parked, self._is_parked = self._find_parked_events()
        self._parked = self._find_parked()

    def ghosts(self) -> Iterator[Violation]:
        """Yield records whose event was never committed."""
        for event_id in sorted(self._published - self._written.keys()):
            yield Violation("I1", f"{event_id} is on a topic and in no outbox")

    def losses(self) -> Iterator[Violation]:
        """Yield committed rows that are neither on their topic nor failed for a reason."""
        for number in sorted(self._world.acknowledged - self._sent.keys()):
            yield Violation("I2", f"transfer {number} was acknowledged, and is in no outbox")
        for event_id, (service, row) in self._written.items():
            name = f"event {_number(row)} {row.envelope.kind} of {service}"
            if row.envelope.id in self._failed:
                if not row.last_error or not self._world.broker.refusals[event_id]:
                    yield Violation("I2", f"{name} has failed, and no broker had refused it")
            elif event_id not in self._published:
                yield Violation("I2", f"{name} is {row.status} and on no topic")

    def misplaced(self) -> Iterator[Violation]:
        """Yield records on another topic than the one of their event."""
        for (topic, _), ids in self._logs.items():
            for event_id in dict.fromkeys(ids):
                _, row = self._written.get(event_id, ("", None))
                if row is not None and topic != (own := _topic_of(row)):
                    yield Violation("I2", f"{_number(row)} of {own} is published to {topic}")

    def doubles(self) -> Iterator[Violation]:
        """Yield effects that happened more than once, or not at all."""
        for (what, number), times in self._entries.items():
            if times > 1:
                yield Violation("I3", f"transfer {number}: {times} times {what}")
        for number in self._sent:
            refunds = self._entries["refund", number] + self._entries["undo", number]
            if refunds > 1 and not self._entries["refund", number] > 1:
                yield Violation("I3", f"transfer {number}: refunded twice")
        for number, row in self._sent.items():
            published = str(row.envelope.id) in self._published
            ended = self._entries["credit", number] + self._entries["refund", number]
            if published and not ended and number not in self._parked:
                yield Violation("I3", f"transfer {number} was published and had no effect")

    def inversions(self) -> Iterator[Violation]:
        """Yield first records and first effects ahead of those of earlier events of their key."""
        for (topic, partition), ids in self._logs.items():
            rows = [self._written[i] for i in dict.fromkeys(ids) if i in self._written]
            for service in self._world.databases:
                ordered = [row for s, row in rows if s == service]
                yield from self._inversions(ordered, f"records of {topic}[{partition}]")
        credited = dict.fromkeys(e.transfer for e in self._world.b.ledger if e.what == "credit")
        # A parked event blocks no others, and an operator may replay it.
        in_order = [number for number in credited if number not in self._was_parked]
        effects = [self._sent[number] for number in in_order if number in self._sent]
        yield from self._inversions(effects, "credits")

    def outcomes(self) -> Iterator[Violation]:
        """Yield transfers with two outcomes, or with none, and money that appeared or vanished."""
        total = 0
        for transfer in self._world.transfers:
            number = transfer.number
            entries = self._entries
            credited = entries["credit", number] - entries["take back", number]
            refunded = entries["refund", number] + entries["undo", number]
            if entries["debit", number] != (number in self._sent):
                yield Violation("I5", f"transfer {number}: debit and event do not agree")
            if number not in self._sent:
                if credited or refunded:
                    yield Violation("I5", f"transfer {number} was never made and has effects")
                continue
            if number in self._parked:
                continue
            total += transfer.amount * (credited + refunded - entries["debit", number])
            if credited > 0 and refunded > 0:
                yield Violation("I5", f"both: transfer {number} is credited and refunded")
            if credited <= 0 and refunded <= 0:
                yield Violation("I5", f"neither: transfer {number} is nowhere")
        if total:
            yield Violation("I5", f"the sum of both banks has changed by {total}")
        yield from self._undone_too_early()
        yield from self._ended_while_parked()
        for statement in self._world.second.outcomes(self._failed, WITHHELD):
            yield Violation("I5", statement)

    def _undone_too_early(self) -> Iterator[Violation]:
        """Yield credits after their rollback: nothing takes those back any more."""
        undone = set()
        for entry in self._world.b.ledger:
            if entry.what == "take back":
                undone.add(entry.transfer)
            elif entry.what == "credit" and entry.transfer in undone:
                yield Violation("I5", f"transfer {entry.transfer} is credited after its take-back")

    def _ended_while_parked(self) -> Iterator[Violation]:
        """Yield parked events with an effect, or with a compensation that no other group caused."""
        for number in sorted(self._is_parked):
            if self._entries["credit", number]:
                yield Violation("I5", f"transfer {number} is parked and credited")
            if self._entries["refund", number] and not self._world.transfers[number].is_fraud:
                yield Violation("I5", f"transfer {number} is parked and refunded")

    def given_up_too_early(self) -> Iterator[Violation]:
        """Yield events whose attempts were used up by failures and crashes of others."""
        for database in self._world.databases.values():
            for key, row in database.inbox.items():
                died = row.settled_at is not None and (row.last_error or "").startswith(_DIED)
                turns = database.turns[key]
                if died and turns < self._world.config.attempts:
                    name = f"{row.envelope.kind} {_number(row)}"
                    yield Violation("I5", f"{name} of {row.group} was given up after {turns} turns")

    def badly_paused(self) -> Iterator[Violation]:
        """Yield attempts of handlers that were known as paused, and pauses that ended wrongly."""
        for database in self._world.databases.values():
            for invariant, statement in database.pauses.problems:
                yield Violation(invariant, statement)

    def purged_too_early(self) -> Iterator[Violation]:
        """Yield events that were purged while a rollback of theirs was open or DEAD."""
        for service, database in self._world.databases.items():
            awaited: dict[tuple[str, UUID], UUID | None] = {}
            for change in database.history:
                if change.table == "outbox":
                    if change.target is None and change.event_id in awaited.values():
                        number = change.event_id.int & 0xFFFF
                        yield Violation("I5", f"{service}: {number} is purged under its rollback")
                    continue
                _, row = self._written.get(str(change.event_id), ("", None))
                if row is None or row.envelope.kind is not TxKind.ROLLBACK:
                    continue
                if change.target is None or change.target in INBOX.purgeable:
                    awaited.pop((change.group, change.event_id), None)
                else:
                    awaited[change.group, change.event_id] = row.envelope.causation_id

    def illegal(self) -> Iterator[Violation]:
        """Yield changes of status without an arrow, or by a process that had lost the row."""
        for service, database in self._world.databases.items():
            for change in database.history:
                if problem := _problem_of(change):
                    yield Violation("I9", f"{service}: {problem}")

    def strange_errors(self) -> Iterator[Violation]:
        """Yield errors of the simulation itself, which would look like failures of handlers."""
        for database in self._world.databases.values():
            for row in database.inbox.values():
                if row.last_error and not row.last_error.startswith(EXPECTED_ERRORS):
                    yield Violation("simulation", row.last_error)

    def backlog(self) -> Iterator[Violation]:
        """Yield rows that are still open after the end of all faults."""
        for service, database in self._world.databases.items():
            for table in (database.outbox, database.inbox):
                for row in table.values():
                    if row.settled_at is None:
                        name = f"{row.envelope.kind} {_number(row)}"
                        yield Violation("I8", f"{service}: {name} is still {row.status}")
        yield Violation("I8", "the services do not come to rest")

    def left_by_the_purge(self) -> Iterator[Violation]:
        """Yield rows that the purge should have removed."""
        for row in purgeable(self._world):
            yield Violation("I8", f"{_number(row)}: a {row.status} row is never purged")

    def _inversions(self, rows: Sequence[OutboxRow], what: str) -> Iterator[Violation]:
        latest: dict[str, int] = defaultdict(int)
        for row in rows:
            key = row.envelope.key
            # A chosen delay exempts an event from the order, and a FAILED event blocks no others.
            if key is None or row.envelope.id in self._failed or row.is_delayed:
                continue
            if row.seq < latest[key]:
                yield Violation("I4", f"{what}: {_number(row)} of key {key} came too late")
            latest[key] = max(latest[key], row.seq)

    def _find_parked(self) -> set[int]:
        """Return the transfers that wait for an operator, by a trace that operators can see."""
        number_of = {row.envelope.id: number for number, row in self._sent.items()}
        parked: set[UUID | None] = set()
        for database in self._world.databases.values():
            for row in database.written.values():
                if row.envelope.id not in self._failed:
                    continue
                if row.envelope.kind is TxKind.ROLLBACK:
                    parked.add(row.envelope.causation_id)
                elif WITHHELD in (row.last_error or ""):
                    parked.add(row.envelope.id)
            for change in database.history:
                if change.target == InboxStatus.DEAD:
                    parked.add(_taken_back(database, change))
        waiting = {i for i in self._is_parked if not self._entries["refund", i]}
        return {number_of[i] for i in parked if i in number_of} | waiting

    def _find_parked_events(self) -> tuple[set[int], set[int]]:
        """Return the transfers whose credit was parked at some time, and those still parked.

        A discarded one counts as parked, if an operator of this world has discarded it.
        """
        number_of = {row.envelope.id: number for number, row in self._sent.items()}
        latest: dict[int, str | None] = {}
        was_parked: set[int] = set()
        for change in self._world.b.history:
            if change.group == "bank" and change.event_id in number_of:
                latest[number_of[change.event_id]] = change.target
                if change.target == InboxStatus.DEAD:
                    was_parked.add(number_of[change.event_id])
        discarded = {number_of[i] for i in self._world.discarded if i in number_of}
        return was_parked, discarded | {n for n in was_parked if latest[n] == InboxStatus.DEAD}


def _problem_of(change: Change) -> str:
    """Return why a change of status is illegal, or ""."""
    lifecycle = OUTBOX if change.table == "outbox" else INBOX
    name = f"{change.table} row {change.event_id.int & 0xFFFF} {change.source} to {change.target}"
    if change.target is None:
        return "" if change.source in lifecycle.purgeable else f"{name}: deleted"
    if not is_unrepaired(lifecycle, change.source, change.target):
        return f"{name}: no such arrow"
    ends = change.source == "PROCESSING" != change.target
    if ends and change.by != change.holder:
        return f"{name}: by {change.by}, when {change.holder} had it"
    return ""


def _topic_of(row: OutboxRow) -> str:
    event = row.envelope
    return physical_topic(PREFIXES[event.source], event.topic, event.kind)


def _taken_back(database: Database, change: Change) -> UUID | None:
    return next(
        (
            row.envelope.causation_id
            for row in database.inbox.values()
            if row.envelope.id == change.event_id
        ),
        None,
    )


def _number(row: object) -> int:
    event_id: UUID = row.envelope.id  # type: ignore[attr-defined]
    return event_id.int & 0xFFFF
