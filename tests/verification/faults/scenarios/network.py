"""F19 and F20: faults of the network between the banks and the broker."""

from __future__ import annotations

import time

from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.proxy import BOTH, TO_CLIENT, TO_SERVER, Api, FaultProxy, Then
from tests.verification.faults.survivors import (
    PATIENCE_S,
    expect_all_to_end_in_order,
    expect_no_attempt_burnt,
)
from tests.verification.faults.world import own_kafka

HOLE_S = 12.0
"""Longer than all timeouts: sends 1.5 s, requests 10 s, membership in a group 6 s."""

IN_A_BATCH = 300
"""Bytes of a request after which its connection breaks off; a request with records has more."""

IN_AN_ANSWER = 12
"""Likewise for any answer."""

HOLES = {"both ways": BOTH, "to the broker": {TO_SERVER}, "from the broker": {TO_CLIENT}}


def torn_messages(banks: Banks) -> None:
    """Answers vanish, connections break off inside messages, and bytes arrive one by one."""
    proxy = _open(banks)
    with proxy.lose_answer(Api.PRODUCE, nth=2, then=Then.HANG) as lost:
        banks.write(40)
        lost.until_struck(PATIENCE_S)
        banks.until(
            lambda: banks.logged("not acknowledged within"), "the relay waits in vain", PATIENCE_S
        )
    banks.drain()
    ids = [record.id for record in banks.records()]
    banks.expect(len(ids) > len(set(ids)), "what was in the log without an answer is sent again")
    for fault in (
        proxy.lose_answer(Api.PRODUCE, then=Then.RESET),
        proxy.reset_after(IN_A_BATCH, of=Api.PRODUCE),
        proxy.reset_after(IN_AN_ANSWER, of=Api.FETCH, to=TO_CLIENT),
        proxy.lose_answer(Api.OFFSET_COMMIT, then=Then.RESET),
    ):
        with fault:
            banks.write(24)
            fault.until_struck(PATIENCE_S)
    before = banks.upstream.outbox()["PROCESSED"]
    with proxy.slices(1) as slices:
        banks.write(24)
        banks.until(
            lambda: banks.upstream.outbox()["PROCESSED"] > before,
            "single bytes arrive, too",
            PATIENCE_S,
        )
        banks.expect(slices.struck > 0, "bytes come one by one")


def black_holes(banks: Banks) -> None:
    """Packets vanish without an error, in both directions and in each alone."""
    proxy = _open(banks)
    for way, to in HOLES.items():
        banks.write(20)
        banks.drain()
        load = banks.begin_writing(80, pause=0.5)
        with proxy.black_hole(to=to) as hole:
            hole.until_struck(PATIENCE_S)
            time.sleep(HOLE_S)
            waiting = banks.upstream.unsettled()
            banks.expect(waiting >= 40, f"{way} nothing goes through any more: {waiting} wait")
        load.finish(2 * PATIENCE_S)


def _open(banks: Banks) -> FaultProxy:
    banks.open()
    banks.upstream.relay()
    banks.downstream.consume()
    assert banks.proxy is not None
    return banks.proxy


def _at_rest(banks: Banks) -> None:
    expect_no_attempt_burnt(banks)
    expect_all_to_end_in_order(banks)


FAULTS = (
    Fault(
        id="F19",
        name="answers lost, resets in mid-batch, single bytes",
        run=torn_messages,
        after=_at_rest,
        setting=own_kafka,
    ),
    Fault(
        id="F20",
        name="black holes, one-way too",
        run=black_holes,
        after=_at_rest,
        setting=own_kafka,
    ),
)
