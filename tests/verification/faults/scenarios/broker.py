"""F17, F18 and F21: faults of the broker."""

from __future__ import annotations

import shutil
import time

from tests.support import paused_process
from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.side import Side
from tests.verification.faults.survivors import (
    PATIENCE_S,
    expect_all_to_end_in_order,
    expect_no_attempt_burnt,
)
from tests.verification.faults.topics import read_whole
from tests.verification.faults.world import make_topics, own_kafka

OUTAGE_S = 60.0
FREEZE_S = 12.0
"""Longer than the send timeout (1.5 s), a lease (2 s) and a consumer's requests (10 s)."""

PATIENT = {"BANK_SEND_ATTEMPTS": "1000"}
"""Settings of a relay that waits for a topic longer than its creation takes."""


def away_for_a_minute(banks: Banks) -> None:
    """The broker is killed and restarts after a minute, in which clients keep writing."""
    _open(banks)
    banks.write(40)
    banks.kafka.kill()
    back_at = time.monotonic() + OUTAGE_S
    banks.begin_writing(120, pause=1.0).finish(2 * PATIENCE_S)
    backlog = banks.upstream.unsettled()
    banks.expect(backlog >= 120, f"what is written during the outage waits: {backlog} events")
    # The length of the outage is the subject of this fault.
    time.sleep(max(0.0, back_at - time.monotonic()))
    banks.expect(_logged(banks.upstream, "action=broker_unavailable"), "the relay logs the outage")
    for side in banks.sides:
        banks.expect(
            _logged(side, "action=broker_unavailable group="),
            f"{side.name}'s consumer logs it, too",
        )
    expect_no_attempt_burnt(banks)
    banks.kafka.start()


def frozen(banks: Banks) -> None:
    """The broker stands still for longer than a send may take, and continues."""
    _open(banks)
    load = banks.begin_writing(200, pause=0.2)
    banks.until(
        lambda: banks.upstream.outbox().get("PROCESSED", 0) >= 20,
        "events are published",
        PATIENCE_S,
    )
    with paused_process.frozen(banks.kafka.pid):
        thaw_at = time.monotonic() + FREEZE_S
        banks.until(lambda: _unconfirmed(banks), "a send ends without an answer", PATIENCE_S)
        time.sleep(max(0.0, thaw_at - time.monotonic()))
        banks.expect(
            _logged(banks.upstream, "not acknowledged within"),
            "the relay reports what it waited for",
        )
    load.finish(PATIENCE_S)


def back_without_its_data(banks: Banks) -> None:
    """The broker loses its disk: topics, records, offsets, groups and producers' ids are gone.

    Consumers had received all records that it acknowledged. During its absence more is written than
    it ever had, so that the consumers' positions lie inside the new topics.
    """
    _open(banks)
    banks.write(60)
    banks.drain()
    banks.gone.extend(banks.records())
    banks.kafka.stop()
    shutil.rmtree(banks.kafka.directory / "data")
    banks.write(240)
    banks.kafka.start()
    make_topics(banks.kafka, banks.topics)
    banks.write(40)


def _open(banks: Banks) -> None:
    """Start the banks' services: two members in one group, two relays of one outbox."""
    banks.open(but="upstream relay")
    for _ in range(2):
        banks.upstream.relay(**PATIENT)
    banks.downstream.consume()


def _logged(side: Side, words: str) -> bool:
    return any(worker.has_logged(words) for worker in side.workers)


def _unconfirmed(banks: Banks) -> int:
    return int(banks.upstream.one("SELECT count(*) FROM shield_outbox WHERE unconfirmed"))


def _settled_at_once(banks: Banks) -> None:
    """Check the banks when all is settled."""
    expect_no_attempt_burnt(banks)
    expect_all_to_end_in_order(banks)


def _nothing_came_twice(banks: Banks) -> None:
    """Expect that the new topics contain only records that the old ones did not."""
    before = {(record.kind, record.id) for record in banks.gone}
    now = {(record.kind, record.id) for record in read_whole(banks.kafka.bootstrap, banks.topics)}
    banks.expect(now, "the new topics hold records")
    banks.expect(not now & before, f"{len(now & before)} settled events were published again")
    expect_all_to_end_in_order(banks)


FAULTS = (
    Fault(
        id="F17",
        name="broker down for a minute",
        run=away_for_a_minute,
        after=_settled_at_once,
        setting=own_kafka,
    ),
    Fault(
        id="F18",
        name="broker frozen beyond the send timeout",
        run=frozen,
        after=_settled_at_once,
        setting=own_kafka,
    ),
    Fault(
        id="F21",
        name="broker restarted without its data",
        run=back_without_its_data,
        after=_nothing_came_twice,
        setting=own_kafka,
    ),
)
