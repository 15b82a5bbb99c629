"""The parts of a consumer that process its events, for tests that look inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from shieldtx.consumer.batch_executor import BatchExecutor
from shieldtx.consumer.consumer import Consumer
from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import Attempt, AttemptOutcome


def process(consumer: Consumer, envelope: Envelope) -> AttemptOutcome:
    """Make an attempt at one event, in the first lane."""
    call = partial(consumer._lanes[0].processor.process, envelope)
    return consumer._runner.run([call])[0]


def execute(consumer: Consumer, attempts: Sequence[Attempt]) -> Counter[AttemptOutcome]:
    """Execute a batch in the first lane."""
    call = partial(executor_of(consumer).execute, attempts)
    return consumer._runner.run([call])[0]


def executor_of(consumer: Consumer) -> BatchExecutor:
    """Return the executor of the first lane."""
    return consumer._lanes[0].executor
