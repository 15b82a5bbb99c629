"""The number of events by pair and verdict, as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shieldtx.reconcile.findings import Count


def write_counts(counts: Sequence[Count], folder: Path) -> None:
    """Write the counts as Parquet: a few rows, for which no Spark job is needed."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {
        "kind": pa.array([count.pair.kind.value for count in counts], pa.string()),
        "upstream": pa.array([count.pair.upstream for count in counts], pa.string()),
        "downstream": pa.array([count.pair.downstream for count in counts], pa.string()),
        "consumer_group": pa.array([count.pair.group for count in counts], pa.string()),
        "verdict": pa.array([count.verdict.value for count in counts], pa.string()),
        "rows": pa.array([count.rows for count in counts], pa.int64()),
    }
    pq.write_table(pa.table(columns), folder / "part-00000.parquet")
