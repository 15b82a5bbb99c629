"""Random overlapping calls of the consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent
from tests.verification.simulation.open_calls import OpenCall
from tests.verification.simulation.overlap import Drawn, name_of


class ConsumerCalls:
    """Calls on few rows of the inbox, of two groups."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.attempts: list[tuple[Any, Any]] = []
        self.batches: list[tuple[Any, Any]] = []
        self.written_here = drawn.draw.choice([0.1, 0.9])
        """The probability that a rollback is handled where its event was written."""

    def take_back(self) -> None:
        """Let one or two rollbacks of an event arrive, which are started together."""
        event = self.drawn.draw.choice(self.drawn.events[-3:])
        rollbacks = [
            event.evolve(
                id=self.drawn.overlap.pair.new_id(),
                source="B",
                kind=TxKind.ROLLBACK,
                causation_id=event.id,
                causation_source=event.source,
            )
            for _ in range(self.drawn.draw.randint(1, 2))
        ]
        self.drawn.events += rollbacks
        self.receive_these(self.group(), [self.arrival(rollback) for rollback in rollbacks])

    def receive(self) -> None:
        group = self.group()
        arrivals = [
            self.arrival(event)
            for event in self.drawn.draw.choices(
                self.drawn.events[-5:], k=self.drawn.draw.randint(1, 4)
            )
        ]
        self.receive_these(group, arrivals)

    def receive_these(self, group: str, arrivals: Sequence[IncomingEvent]) -> None:
        def receive(side: Any, call: OpenCall) -> Any:
            call.holds_its_commit = True
            return side.inbox.receive(group, arrivals, [])

        self.drawn.overlap.begin(
            f"receive {[name_of(a.envelope) for a in arrivals]} of {group}",
            receive,
            stays=self.drawn.draw.random() < 0.25 and self.drawn.stays(),
            fails=self.drawn.fails(),
            seen=lambda receipt: (
                [event.id for event in receipt.fresh],
                [(a.envelope.id, a.number) for a in receipt.started],
                receipt.duplicates,
                len(receipt.parked),
            ),
            keep=self.keep_receipt,
        )

    def keep_receipt(self, mine: Any, theirs: Any) -> None:
        if mine.started:
            self.batches.append((mine.started, theirs.started))
            self.attempts += zip(mine.started, theirs.started, strict=True)

    def due(self) -> None:
        group, handled = self.group(), {("t", kind) for kind in TxKind}
        self.drawn.overlap.begin(
            "due",
            lambda side, _: side.inbox.due(group, handled=handled, limit=100),
            seen=lambda events: [event.id for event in events],
        )

    def start_attempt(self) -> None:
        rows = [
            (r.group, r.envelope) for r in self.drawn.overlap.pair.memory.database.inbox.values()
        ]
        if self.attempts and self.drawn.draw.random() < 0.5:
            rows = [(mine.group, mine.envelope) for mine, _ in self.attempts[-2:]]
        if not rows:
            return
        group, event = self.drawn.draw.choice(rows[-6:])
        lease, most = timedelta(seconds=self.drawn.seconds()), self.drawn.draw.randint(1, 3)
        self.drawn.overlap.begin(
            f"start {name_of(event)} of {group}",
            lambda side, _: side.inbox.start_attempt(group, event, lease=lease, max_attempts=most),
            seen=lambda attempt: attempt and (attempt.number, attempt.exhausted),
            keep=self.keep_attempt,
        )

    def keep_attempt(self, mine: Any, theirs: Any) -> None:
        if mine is not None:
            self.attempts.append((mine, theirs))

    def effect(self) -> None:
        if not self.attempts:
            return
        name, attempt = self.attempt()
        written_here = self.drawn.draw.random() < self.written_here

        def apply(side: Any, call: OpenCall) -> list[Any]:
            mine = attempt(side)
            seen: list[Any] = []
            with side.inbox.effect(mine) as session:
                if mine.envelope.kind is TxKind.ROLLBACK:
                    seen += _compensate(side.inbox, session, mine, written_here=written_here)
                call.stay_open()
            return seen

        self.drawn.overlap.begin(
            f"effect {name}{', of an event written here' * written_here}",
            apply,
            stays=self.drawn.stays(),
            fails=self.drawn.fails(),
        )

    def effects(self) -> None:
        if not self.batches:
            return
        name, part = self.part()

        def apply(side: Any, call: OpenCall) -> None:
            with side.inbox.effects(part(side)):
                call.stay_open()

        self.drawn.overlap.begin(
            f"effects {name}", apply, stays=self.drawn.stays(), fails=self.drawn.fails()
        )

    def release(self) -> None:
        if self.batches:
            name, part = self.part()
            self.drawn.overlap.begin(
                f"release {name}", lambda side, _: side.inbox.release(part(side))
            )

    def postpone(self) -> None:
        if not self.attempts:
            return
        name, attempt = self.attempt()
        delay = timedelta(seconds=self.drawn.seconds())
        self.drawn.overlap.begin(
            f"postpone {name}",
            lambda side, _: side.inbox.postpone(attempt(side), delay=delay, reason="again"),
        )

    def note(self) -> None:
        if self.batches:
            name, part = self.part()
            self.drawn.overlap.begin(
                f"note {name}", lambda side, _: side.inbox.note(part(side), reason="ends")
            )

    def give_up(self) -> None:
        if not self.attempts:
            return
        name, attempt = self.attempt()
        rollback = self.drawn.new_event()

        def write_and_stay(side: Any, call: OpenCall) -> Callable[[Any], None]:
            def in_transaction(session: Any) -> None:
                side.insert(session.connection(), rollback)
                call.stay_open()

            return in_transaction

        self.drawn.overlap.begin(
            f"give up {name}",
            lambda side, call: side.inbox.give_up(
                attempt(side), reason="enough", in_transaction=write_and_stay(side, call)
            ),
            stays=self.drawn.stays(),
            fails=self.drawn.fails(),
        )

    def group(self) -> str:
        return self.drawn.draw.choice("gggh")

    def arrival(self, envelope: Envelope) -> IncomingEvent:
        record = ReceivedRecord(
            topic="t", partition=0, offset=self.drawn.draw.randrange(40), key=None, value=b"1"
        )
        lease = timedelta(seconds=self.drawn.seconds()) if self.drawn.draw.random() < 0.6 else None
        return IncomingEvent(envelope=envelope, record=record, lease=lease)

    def attempt(self) -> tuple[str, Callable[[Any], Any]]:
        mine, theirs = self.drawn.recent(self.attempts)
        return f"{name_of(mine.envelope)} of {mine.group}", self.drawn.of_side(mine, theirs)

    def part(self) -> tuple[str, Callable[[Any], Any]]:
        mine, theirs = self.drawn.recent(self.batches)
        first = self.drawn.draw.randrange(len(mine))
        end = self.drawn.draw.randint(first + 1, len(mine))
        name = f"{[name_of(attempt.envelope) for attempt in mine[first:end]]}"
        return name, self.drawn.of_side(mine[first:end], theirs[first:end])


def _compensate(inbox: Any, session: Any, attempt: Any, *, written_here: bool) -> Sequence[Any]:
    original = inbox.original(session, attempt, written_here=written_here)
    if original is not None:
        inbox.mark_compensated(session, attempt)
        return [original.envelope.id, original.status, original.compensated]
    return [None if written_here else inbox.fence(session, attempt)]
