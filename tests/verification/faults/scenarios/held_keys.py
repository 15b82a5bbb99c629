"""F51: events of a missing topic block many keys, with many rows after each."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from tests.verification.faults.bank import STATED
from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.replicas import administer
from tests.verification.faults.survivors import PATIENCE_S, expect_all_to_end_in_order
from tests.verification.faults.topics import read_whole
from tests.verification.faults.world import make_topics, own_kafka

OUT_OF_LINE = "all rows hold a key or are blocked"
KEYS = 500
P99_S = 5.0
"""Limit for transfers written while the rows are blocked; the machine may be busy with others."""
LONGEST_S = 60.0
"""Limit for transfers written with the rows, before the relay knows that their topic is missing."""

# Each key has 21 to 101 events, interleaved with those of all the others.
_STATEMENTS = f"""
    INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, key,
        payload, status, attempts, waiting, holds_key, due_at, unconfirmed, created_at)
    SELECT gen_random_uuid(), k % 16, 'upstream', '{STATED}', '{STATED}', 'COMMIT', 'INSERT',
        'held-' || k, '{{"seq": ' || n || '}}', 'INIT', 0, false, false, now(), false, now()
    FROM generate_series(1, {KEYS}) AS k, LATERAL generate_series(1, 21 + k % 81) AS n
    ORDER BY n, k"""
_BLOCKED = f"SELECT count(*) FROM shield_outbox WHERE topic = '{STATED}' AND holds_key"
_ALL = f"SELECT count(*) FROM shield_outbox WHERE topic = '{STATED}'"
_SENT = f"{_ALL} AND status = 'PROCESSED'"
_TOOK = f"""
    SELECT extract(epoch FROM percentile_disc(:part)
        WITHIN GROUP (ORDER BY settled_at - created_at)) AS seconds
    FROM shield_outbox WHERE topic <> '{STATED}' AND (created_at >= :since) = :later"""


def refused_beside_healthy(banks: Banks, *, patience_s: float = PATIENCE_S) -> None:
    """Transfers settle while the rows of the missing topic are blocked, and soon afterwards.

    The full figure, 1,000,000 rows after 5,000 blocked keys, is in `make bench` (`held_keys`).
    """
    up = banks.upstream
    banks.open(but="upstream relay")
    # A relay does not start without its topics.
    make_topics(banks.kafka, [_topic(banks)])
    up.relay(
        BANK_STATEMENTS="1",
        BANK_SEND_ATTEMPTS="1000",
        BANK_BACK_OFF="5",
        SHIELDTX_RELAY_BATCH_SIZE="200",
    )
    administer(banks.kafka.bootstrap, lambda admin: admin.delete_topics([_topic(banks)]))
    load = banks.begin_writing(300, pause=0.1)
    up.tamper(_STATEMENTS)
    rows = up.one(_ALL)
    banks.until(lambda: up.one(_BLOCKED) == rows, f"{OUT_OF_LINE}: {rows}", patience_s)
    load.finish(PATIENCE_S)
    since = up.one("SELECT clock_timestamp()")
    banks.write(300, pause=0.1)
    others = f"SELECT count(*) FROM shield_outbox WHERE topic <> '{STATED}' AND settled_at IS NULL"
    banks.until(lambda: not up.one(others), "every transfer is settled", PATIENCE_S)
    p99 = up.one(_TOOK, part=0.99, since=since, later=True)
    banks.expect(p99 < P99_S, f"transfers settle within {P99_S} s (p99), not {p99:.1f} s")
    longest = up.one(_TOOK, part=1.0, since=since, later=False)
    banks.expect(
        longest < LONGEST_S, f"the first ones settle within {LONGEST_S} s, not {longest:.1f} s"
    )
    banks.expect(not up.one(_SENT), "nothing is sent to the missing topic")
    make_topics(banks.kafka, [_topic(banks)])


def _topic(banks: Banks) -> str:
    return f"{banks.prefix}{STATED}.commit"


def _all_in_order(banks: Banks) -> None:
    """Expect each statement on its topic, those of a key in order; then delete their rows."""
    up = banks.upstream
    records = sorted(
        (r for r in read_whole(banks.kafka.bootstrap, [_topic(banks)]) if r.key), key=_place
    )
    by_key = {
        key: list(dict.fromkeys(r.seq for r in of_key)) for key, of_key in groupby(records, _key)
    }
    wrong = [
        key
        for key, seqs in by_key.items()
        if seqs != list(range(1, 22 + int((key or "").split("-")[1]) % 81))
    ]
    banks.expect(len(by_key) == KEYS and not wrong, f"all statements are in order: {wrong[:3]}")
    # Only the transfers are counted.
    up.tamper(f"DELETE FROM shield_outbox WHERE topic = '{STATED}'")
    expect_all_to_end_in_order(banks)


_key = attrgetter("key")
_place = attrgetter("key", "partition", "offset")

FAULTS = (
    Fault(
        id="F51",
        name="a refused topic with rows after blocked keys",
        run=refused_beside_healthy,
        after=_all_in_order,
        setting=own_kafka,
    ),
)
