"""A batch is freed when it has ended, without the garbage collector, which workers run rarely."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from shieldtx.ports.inbox import Attempt, AttemptOutcome
from tests.integration.consumer.test_consumer import World
from tests.integration.consumer.test_refusals_in_batches import (
    HANDLER_STYLES,
    Handler,
    fail,
    number,
    refuse,
    world,
)

__all__ = ["HANDLER_STYLES", "number", "world"]


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect and log nothing within the block: pytest keeps the records, with their tracebacks."""
    gc.collect()
    gc.disable()
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


def batches_in_memory() -> set[UUID]:
    """Return the tokens of all attempts, those that other tests have left among them."""
    return {each.token for each in gc.get_objects() if isinstance(each, Attempt)}


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [(refuse, AttemptOutcome.REFUSED), (fail, AttemptOutcome.RETRIED)],
    ids=["refused", "retried"],
)
def test_attempts_are_freed_without_a_collection(
    world: World, trouble: Callable[[Session], object], outcome: AttemptOutcome
) -> None:
    handler = Handler(world)
    handler.trouble |= dict.fromkeys("cg", trouble)
    consumer = handler.primed()
    world.write(*"abcdefg")
    with no_collections():
        before = batches_in_memory()
        done = consumer.run_once()
        assert done.outcomes == {AttemptOutcome.APPLIED: 5, outcome: 2}
        assert batches_in_memory() <= before
