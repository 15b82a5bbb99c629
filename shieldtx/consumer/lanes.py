"""Lanes: the events of different keys are processed at the same time, those of one key in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TypeAlias, TypeVar

from shieldtx.consumer.batch_executor import BatchExecutor
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from shieldtx.ports.lanes import Lanes

T = TypeVar("T")
Outcomes: TypeAlias = Counter[AttemptOutcome]


class OneLane:
    """The port Lanes in the thread of the pass: one call after the other."""

    count = 1

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run the calls; the first error is raised at once."""
        return [call() for call in calls]

    def close(self) -> None:
        """Do nothing: there are no threads to release."""


class Lane:
    """Processes the events of some keys, one after the other."""

    def __init__(
        self,
        *,
        executor: BatchExecutor,
        processor: EventProcessor,
        is_time_up: Callable[[], bool],
    ) -> None:
        self.executor = executor
        self.processor = processor
        self._is_time_up = is_time_up

    def process(self, share: Share) -> Outcomes:
        """Execute the started attempts in batches, then process the other events alone."""
        outcomes = self.executor.execute(share.attempts)
        for envelope in share.envelopes:
            if self._is_time_up():
                break
            outcomes[self.processor.process(envelope)] += 1
        return outcomes


@dataclass(kw_only=True, slots=True)
class Share:
    """Events of a pass that are processed one after the other."""

    attempts: list[Attempt] = field(default_factory=list)
    """Attempts that were started when their events were received."""
    envelopes: list[Envelope] = field(default_factory=list)
    """Events that get an attempt of their own, after these attempts."""

    @property
    def size(self) -> int:
        """The number of events."""
        return len(self.attempts) + len(self.envelopes)

    def add(self, other: Share) -> None:
        """Append the events of another share."""
        self.attempts += other.attempts
        self.envelopes += other.envelopes


def process_in_lanes(
    lanes: Sequence[Lane],
    runner: Lanes,
    *,
    attempts: Sequence[Attempt] = (),
    envelopes: Iterable[Envelope] = (),
) -> Outcomes:
    """Process events in several lanes at the same time, and return all outcomes.

    Errors of the database are raised when all lanes have ended.
    """
    shares = divided(Share(attempts=list(attempts), envelopes=list(envelopes)), into=len(lanes))
    calls = [partial(lane.process, share) for lane, share in zip(lanes, shares, strict=False)]
    outcomes: Outcomes = Counter()
    for part in runner.run(calls):
        outcomes.update(part)
    return outcomes


def divided(events: Share, *, into: int) -> list[Share]:
    """Divide events into at most `into` shares of about the same size, none of them empty.

    All events of a key are in the same share and stay in order. Events without a key are
    independent of each other.
    """
    if into == 1 or events.size <= 1:
        return [events] if events.size else []
    of_keys: dict[object, Share] = {}
    for attempt in events.attempts:
        of_keys.setdefault(_key(attempt.envelope), Share()).attempts.append(attempt)
    for envelope in events.envelopes:
        of_keys.setdefault(_key(envelope), Share()).envelopes.append(envelope)
    shares = [Share() for _ in range(min(into, len(of_keys)))]
    # The largest key first: the shares then differ by no more than a small key.
    for of_key in sorted(of_keys.values(), key=_SIZE, reverse=True):
        min(shares, key=_SIZE).add(of_key)
    return shares


_SIZE = attrgetter("size")


def _key(envelope: Envelope) -> object:
    if envelope.key is None:
        return envelope.source, envelope.id
    return envelope.topic, envelope.key
