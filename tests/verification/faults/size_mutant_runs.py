"""Mutant runs of batch sizes: a process stops with a batch, and the database has its rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from shieldtx.relay.relay import CLAIMS_AT_A_TIME
from tests.verification.faults.bank import by_hand
from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.side import Side
from tests.verification.faults.world import World

EVENTS: Final = 120
EVENT: Final = 10_000
"""Maximum bytes of a payload."""
BATCH: Final = 120_000
"""Maximum bytes in a batch of a relay or a consumer. A full batch of 50 rows has far more."""
INSERT: Final = 20_000
"""Characters."""

CLAIM: Final = "the bytes that a relay claims are bounded"
POLL: Final = "the bytes that a consumer receives at a time are bounded"
STATEMENT: Final = "the bytes that an INSERT brings are bounded"

_CLAIMED: Final = """
    SELECT sum(octet_length(payload)) FROM shield_outbox WHERE lease_token IS NOT NULL
    GROUP BY lease_token"""
_RECEIVED: Final = """
    SELECT sum(octet_length(payload)) FROM shield_inbox GROUP BY xmin::text{more}"""


def bounded(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Bound batches to fewer bytes than their maximum of rows would have."""
    del world, open_
    sizes = {f"SHIELDTX_{who}_BATCH_BYTES": str(BATCH) for who in ("RELAY", "CONSUMER")}
    return {"settings": {**sizes, "BANK_INSERT_CHARACTERS": str(INSERT)}}


def claimed(banks: Banks) -> None:
    """A relay stands still with the rows that it has claimed from a backlog."""
    up = banks.upstream
    banks.open(but="upstream relay")
    _write_large_ones(banks)
    with_a_batch = Failpoint(step="claim", when="after", action="freeze")
    up.launch("relay", **up.broken_at(with_a_batch))
    _measure(banks, up, {CLAIM: (_CLAIMED, BATCH // CLAIMS_AT_A_TIME)})


def received(banks: Banks) -> None:
    """A consumer stands still after receiving its first records of a full topic."""
    up, down = banks.sides
    banks.open(but="downstream consume")
    _write_large_ones(banks)
    banks.until(lambda: set(up.outbox()) == {"PROCESSED"}, "all are on the topic")
    with_a_batch = Failpoint(step="receive", when="after", action="freeze")
    down.launch("consume", down.group, **down.broken_at(with_a_batch))
    by_batch, by_statement = _RECEIVED.format(more=""), _RECEIVED.format(more=", cmin::text")
    _measure(banks, down, {POLL: (by_batch, BATCH), STATEMENT: (by_statement, INSERT)})


def _write_large_ones(banks: Banks) -> None:
    accounts = [banks.accounts[n % len(banks.accounts)] for n in range(EVENTS)]
    write = partial(by_hand.transfer_too_much, size=EVENT - 200)
    banks.upstream.call("large", write, *accounts).finish()


def _measure(banks: Banks, side: Side, bounds: Mapping[str, tuple[str, int]]) -> None:
    """Expect that no batch of the side exceeds its bound by more than its last event."""
    banks.struck(side)
    for expected, (query, most) in bounds.items():
        largest = max(int(size) for (size,) in side.rows(query))
        banks.expect(largest <= most + EVENT, f"{expected}: {largest:,}, the bound is {most:,}")
    side.wake.touch()
