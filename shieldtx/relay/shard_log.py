"""What a relay logs about the shards that it owns."""

from __future__ import annotations

import logging

from shieldtx.ports.relay import ShardLeases

log = logging.getLogger(__name__)


def log_shards(relay: str, *, before: ShardLeases, now: ShardLeases) -> None:
    """Log the shards that a renewal of the leases has taken, and those that were lost."""
    lost = before.shards - before.surplus - now.shards
    taken = now.shards - before.shards
    if lost:
        log.warning(
            "relay lost its shards' leases",
            extra={"action": "shards_lost", "relay": relay, "shards": sorted(lost)},
        )
    if taken:
        log.info(
            "relay has taken shards",
            extra={
                "action": "shards_taken",
                "relay": relay,
                "shards": sorted(taken),
                "count": len(now.shards),
            },
        )
