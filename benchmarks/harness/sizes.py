"""The sizes of the measurements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Counts of events and rounds."""

    rounds: int
    """Alternating runs of each subject."""
    events: int
    """Events through each relay."""
    with_slow_peer: bool = False
    keys: int = 1_000
    partitions: int = 8
    latency_seconds: float
    latency_rate: int = 500
    """Events per second."""
    hot_key_seconds: float
    transactions: int
    """Transactions of the write side, of each kind in a round."""
    consumed: int
    """Records through each consumer."""
    refused: int
    """Records through each consumer whose handler refuses some."""
    waiting: int
    """Records through each consumer whose handlers wait."""
    snapshot_events: int
    backlogs: tuple[int, int, int]
    window: int
    """Events of each measurement with a steady backlog."""
    delayed_rows: int
    due_seconds: float
    """Seconds over which events become due next to them."""
    held_keys: int
    rows_behind: int
    """Total rows that these keys block."""
    held_warm_seconds: float
    """Seconds until the claims of a relay start after them."""
    held_seconds: float
    half_messages: int
    memory_events: int
    large_events: int
    purged_rows: int


FULL = Sizes(
    rounds=3,
    with_slow_peer=True,
    events=100_000,
    latency_seconds=30.0,
    hot_key_seconds=15.0,
    transactions=2_000,
    consumed=10_000,
    refused=10_000,
    waiting=1_500,
    snapshot_events=500_000,
    backlogs=(10_000, 1_000_000, 5_000_000),
    window=40_000,
    delayed_rows=1_000_000,
    due_seconds=30.0,
    held_keys=5_000,
    rows_behind=1_000_000,
    held_warm_seconds=15.0,
    held_seconds=30.0,
    half_messages=10_000,
    memory_events=1_000_000,
    large_events=3_000,
    purged_rows=1_000_000,
)
QUICK = Sizes(
    rounds=1,
    events=20_000,
    latency_seconds=6.0,
    hot_key_seconds=3.0,
    transactions=300,
    consumed=1_000,
    refused=2_000,
    waiting=1_000,
    snapshot_events=40_000,
    backlogs=(10_000, 50_000, 200_000),
    window=20_000,
    delayed_rows=50_000,
    due_seconds=5.0,
    held_keys=500,
    rows_behind=50_000,
    held_warm_seconds=3.0,
    held_seconds=5.0,
    half_messages=1_000,
    memory_events=40_000,
    large_events=100,
    purged_rows=60_000,
)
