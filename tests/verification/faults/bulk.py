"""A million events on which both banks agree, inserted by the databases themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from shieldtx.reconcile.verdicts import Verdict
from tests.verification.faults.banks import Banks
from tests.verification.faults.reconciliation_outcomes import Mismatch
from tests.verification.faults.side import Side

TOPIC = "bank.archived"

# Ids as from a service that writes a thousand events a second, up to an hour ago; the same in both
# databases.
_EVENTS = """
    SELECT (lpad(to_hex(:began + n), 12, '0') || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid
           AS event_id,
           '{"number": ' || n || ', "of": "' || md5(n::text) || '"}' AS payload,
           to_timestamp((:began + n) / 1000.0) AS at, n
    FROM generate_series(1, :rows) AS n"""
_SENT = f"""
    INSERT INTO shield_outbox (event_id, shard, source, topic, event_type, tx_kind, operation, key,
        payload, status, attempts, waiting, holds_key, due_at, unconfirmed, created_at, settled_at)
    SELECT event_id, n % 16, 'upstream', '{TOPIC}', '{TOPIC}', 'COMMIT', 'INSERT', 'a' || n % 1000,
        payload, 'PROCESSED', 1, false, false, at, false, at, at
    FROM ({_EVENTS}) AS events"""
_RECEIVED = f"""
    INSERT INTO shield_inbox (event_id, consumer_group, source, topic, event_type, tx_kind,
        operation, key, payload, event_time, status, attempts, due_at, received_at, settled_at)
    SELECT event_id, :group, 'upstream', '{TOPIC}', '{TOPIC}', 'COMMIT', 'INSERT', 'a' || n % 1000,
        payload, at, 'PROCESSED', 1, at, at, at
    FROM ({_EVENTS}) AS events"""


def insert(banks: Banks, rows: int) -> None:
    """Write the given number of events into both databases."""
    up, down = banks.sides
    now_ms = up.one("SELECT (extract(epoch FROM now()) * 1000)::bigint")
    began = now_ms - rows - 3_600_000
    with ThreadPoolExecutor(2) as pool:
        written = [
            pool.submit(_write, up, _SENT, began=began, rows=rows),
            pool.submit(_write, down, _RECEIVED, began=began, rows=rows, group=down.group),
        ]
        for done in written:
            done.result()


def damage(banks: Banks) -> set[Mismatch]:
    """Damage a few of the rows; return the mismatches that a run has to report."""
    up, down = banks.sides
    events = [
        row.event_id
        for row in up.rows(
            "SELECT event_id FROM shield_outbox WHERE topic = :topic "
            "ORDER BY hashtextextended(event_id::text, :seed) LIMIT 12",
            topic=TOPIC,
            seed=banks.seed,
        )
    ]
    gone, unknown, changed, given_up = events[:5], events[5:8], events[8:11], events[11:]
    down.tamper("DELETE FROM shield_inbox WHERE event_id = ANY(:ids)", ids=gone)
    up.tamper("DELETE FROM shield_outbox WHERE event_id = ANY(:ids)", ids=unknown)
    down.tamper("UPDATE shield_inbox SET payload = 'null' WHERE event_id = ANY(:ids)", ids=changed)
    down.tamper(
        "UPDATE shield_inbox SET status = 'MAX_RECONSUMED' WHERE event_id = ANY(:ids)",
        ids=given_up,
    )
    found: dict[Verdict, list[UUID]] = {
        Verdict.MISSING_DOWNSTREAM: gone,
        Verdict.UNKNOWN_UPSTREAM: unknown,
        Verdict.PAYLOAD_DIFFERS: changed,
        Verdict.NEITHER_EFFECT_NOR_COMPENSATION: given_up,
    }
    return {Mismatch(v, down.group, event) for v, events in found.items() for event in events}


def delete(banks: Banks) -> None:
    """Delete all of them: the checker of the banks does not know them."""
    up, down = banks.sides
    up.tamper("DELETE FROM shield_outbox WHERE topic = :topic", topic=TOPIC)
    down.tamper("DELETE FROM shield_inbox WHERE topic = :topic", topic=TOPIC)


def _write(side: Side, statement: str, **parameters: object) -> None:
    side.tamper(statement, **parameters)
    side.execute("ANALYZE shield_outbox, shield_inbox")
