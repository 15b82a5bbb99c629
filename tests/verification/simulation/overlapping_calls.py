"""Schedules of calls of the stores whose transactions overlap, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.verification.simulation.overlap import Drawn, Overlap
from tests.verification.simulation.overlapping_consumer_calls import ConsumerCalls
from tests.verification.simulation.overlapping_relay_calls import RelayCalls


class OverlappingCalls:
    """A schedule: calls of every port on few rows, some of which stay open for a while."""

    def __init__(self, overlap: Overlap, draw: random.Random) -> None:
        self.overlap = overlap
        self.draw = draw

    def make(self, steps: int) -> None:
        """Make `steps` calls, and then end all open ones."""
        drawn = Drawn(self.overlap, self.draw)
        relay, consumer = RelayCalls(drawn), ConsumerCalls(drawn)
        weights: dict[Callable[[], None], float] = {
            self.pass_time: 4,
            relay.write: 3,
            consumer.take_back: 4,
            relay.take_over: 4,
            relay.claim: 4,
            relay.withdraw: 1,
            relay.settle: 5,
            relay.fail: 6,
            consumer.receive: 7,
            consumer.due: 2,
            consumer.start_attempt: 7,
            consumer.effect: 16,
            consumer.effects: 5,
            consumer.release: 2,
            consumer.postpone: 2,
            consumer.note: 2,
            consumer.give_up: 5,
            relay.purge: 3,
        }
        # Each schedule makes some calls rarely and others often, which then overlap more often.
        weights = {call: weight * self.draw.choice([0.2, 1, 3]) for call, weight in weights.items()}
        try:
            for begin in (
                relay.write,
                relay.write,
                relay.take_over,
                consumer.receive,
                consumer.take_back,
            ):
                begin()
            for call in self.draw.choices([*weights], weights=[*weights.values()], k=steps):
                while self.overlap.has_waiting() or self.draw.random() < 0.2:
                    if not self.end():
                        break
                call()
            while self.end():
                pass
        finally:
            self.overlap.close()

    def end(self) -> bool:
        """Let one of the open calls end; return whether there was any."""
        opened = self.overlap.open_calls()
        if opened:
            self.overlap.end(self.draw.choice(opened), fails=self.draw.random() < 0.4)
        return bool(opened)

    def pass_time(self) -> None:
        self.overlap.pass_time(self.draw.choice([0.5, 2.0, 6.0]))
