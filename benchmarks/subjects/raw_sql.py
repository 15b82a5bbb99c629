"""Claim and settle as bare statements on shieldtx's table, nothing sent: the database alone."""

from __future__ import annotations

from itertools import cycle
from typing import Final
from uuid import uuid4

import psycopg

from benchmarks.subjects.telling import Telling

SHARDS: Final = 64
BATCH: Final = 1_000
CLAIM: Final = """
UPDATE shield_outbox
SET status = 'PROCESSING', attempts = attempts + 1, lease_token = %(token)s,
    lease_until = now() + interval '30 s'
WHERE event_id = ANY(ARRAY(
    SELECT event_id FROM shield_outbox
    WHERE shard = %(shard)s AND settled_at IS NULL AND NOT waiting AND status = 'INIT'
    ORDER BY seq LIMIT %(limit)s))
RETURNING event_id, seq, key, payload
"""
SETTLE: Final = """
UPDATE shield_outbox
SET status = 'PROCESSED', settled_at = now(), lease_token = NULL, lease_until = NULL
WHERE event_id = ANY(%(ids)s) AND lease_token = %(token)s AND status = 'PROCESSING'
"""


def main() -> None:
    """Claim and settle, shard by shard, until the harness has heard enough."""
    telling = Telling()
    with psycopg.connect(telling.job["dsn"], autocommit=True) as connection:
        telling.ready()
        settled = 0
        for shard in cycle(range(SHARDS)):
            if telling.is_over:
                break
            token = uuid4()
            rows = connection.execute(
                CLAIM, {"token": token, "shard": shard, "limit": BATCH}, binary=True
            ).fetchall()
            ids = [row[0] for row in rows]
            settled += connection.execute(SETTLE, {"ids": ids, "token": token}).rowcount
            telling.sample(settled)


if __name__ == "__main__":
    main()
