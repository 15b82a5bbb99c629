"""Claim and settle as bare statements on shieldtx's table, nothing sent: only the database.

Like the relay: in the order of writing over all shards, from the end of the previous claim, and by
the rows' addresses.
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import psycopg

from benchmarks.harness.child_protocol import ProgressReporter
from shieldtx.scheduling.gc_tuning import few_collections

BATCH: Final = 1_000
CLAIM: Final = """
UPDATE shield_outbox
SET status = 'PROCESSING', attempts = attempts + 1, lease_token = %(token)s,
    lease_until = now() + interval '30 s'
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM shield_outbox
    WHERE seq > %(after)s AND settled_at IS NULL AND NOT waiting AND status = 'INIT'
    ORDER BY seq LIMIT %(limit)s))
RETURNING ctid::text, seq, event_id, key, payload
"""
SETTLE: Final = """
UPDATE shield_outbox
SET status = 'PROCESSED', settled_at = now(), lease_token = NULL, lease_until = NULL
WHERE ctid = ANY(%(places)s::tid[]) AND lease_token = %(token)s AND status = 'PROCESSING'
"""


@few_collections()
def main() -> None:
    """Claim and settle until the harness ends the run."""
    reporter = ProgressReporter()
    with psycopg.connect(reporter.job["dsn"], autocommit=True) as connection:
        reporter.ready()
        settled = after = 0
        while not reporter.is_over:
            token = uuid4()
            rows = connection.execute(
                CLAIM, {"token": token, "after": after, "limit": BATCH}, binary=True
            ).fetchall()
            after = max((row[1] for row in rows), default=after)
            places = [row[0] for row in rows]
            settled += connection.execute(SETTLE, {"places": places, "token": token}).rowcount
            reporter.sample(settled)


if __name__ == "__main__":
    main()
