"""F57: consumers die while they handle several keys at a time, in threads or on an event loop."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.scenarios.consumer import killed_on_the_way

AT_A_TIME = {"SHIELDTX_CONSUMER_CONCURRENCY": "4"}


def killed_with(banks: Banks, *, how: Mapping[str, str]) -> None:
    """Consumers of both banks die before, in and after handlers that run at the same time."""
    for side in (banks.upstream, banks.downstream):
        side.environment = {**side.environment, **how}
    killed_on_the_way(banks)


FAULTS = (
    Fault(
        id="F57a",
        name="consumer killed, handlers in 4 threads",
        run=partial(killed_with, how=AT_A_TIME),
    ),
    Fault(
        id="F57b",
        name="consumer killed, coroutine handlers, 4 at a time, psycopg",
        run=partial(killed_with, how={**AT_A_TIME, "BANK_COROUTINES_ON": "psycopg"}),
    ),
    Fault(
        id="F57c",
        name="consumer killed, coroutine handlers, 4 at a time, asyncpg",
        run=partial(killed_with, how={**AT_A_TIME, "BANK_COROUTINES_ON": "asyncpg"}),
    ),
)
