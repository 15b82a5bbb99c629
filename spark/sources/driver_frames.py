"""Frames of the driver's data.

The frames are made of Arrow tables, which Spark uses directly: lists of tuples would go through a
Python worker, whose start takes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from shieldtx.reconcile.expectations import Route, Stream
from shieldtx.reconcile.window import Memory, Window

TEXT: Final = pa.string()
NUMBER: Final = pa.int32()
TRUTH: Final = pa.bool_()
TIME: Final = pa.timestamp("us", tz="UTC")
PERIOD: Final = pa.duration("us")

_STREAM = {"kind": TEXT, "upstream": TEXT, "downstream": TEXT}
_ROUTES = _STREAM | {
    "consumer_group": TEXT,
    "topic": TEXT,
    "event_type": TEXT,
    "writer": TEXT,
    "expected": TRUTH,
    "if_applied": TRUTH,
    "max_attempts": NUMBER,
}
_WINDOWS = _STREAM | {"watermark": TIME, "horizon": TIME, "memory": PERIOD}


def union_of(frames: Iterable[DataFrame]) -> DataFrame:
    """Return the union of frames with the same columns; at least one frame is required."""
    return reduce(DataFrame.unionByName, frames)


def frame_of(
    spark: SparkSession, columns: Mapping[str, pa.DataType], rows: Sequence[Sequence[Any]]
) -> DataFrame:
    """Return a frame of columns and their types, and of rows with a value for each."""
    values = zip(*rows, strict=True) if rows else ([] for _ in columns)
    arrays = [pa.array(list(v), type=t) for v, t in zip(values, columns.values(), strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, names=list(columns)))


def routes_frame(spark: SparkSession, routes: Iterable[Route]) -> DataFrame:
    """Return a row for each route; `writer` is the service whose events its rollbacks take back."""
    rows = [
        (
            route.stream.kind.value,
            route.stream.upstream,
            route.stream.downstream,
            route.group,
            route.topic,
            route.event_type,
            route.causation_source or "",
            route.expected,
            route.if_applied,
            route.max_attempts,
        )
        for route in routes
    ]
    return frame_of(spark, _ROUTES, rows)


def windows_frame(
    spark: SparkSession, windows: Mapping[Stream, Window], memories: Mapping[str, Memory]
) -> DataFrame:
    """Return a row for each stream; `memory` is how long its groups recognize a repeated event."""
    rows = [
        (
            stream.kind.value,
            stream.upstream,
            stream.downstream,
            window.watermark,
            window.horizon,
            memory.period if (memory := memories.get(stream.downstream)) else None,
        )
        for stream, window in windows.items()
    ]
    return frame_of(spark, _WINDOWS, rows)
