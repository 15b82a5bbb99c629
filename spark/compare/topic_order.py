"""The check that the records of a key are in the order in which its events were written."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

from shieldtx.domain.states import OutboxStatus

_SENT: Final = OutboxStatus.PROCESSED.value
_CLOCK_STEP: Final = timedelta(seconds=10)
"""The time by which a database's clock may go back while it runs or fails over."""


def with_order(events: DataFrame, margin: timedelta) -> DataFrame:
    """Add `in_order`: False only where a later event of the key provably overtook this one.

    A lower `seq` or an earlier creation is not enough. An event becomes visible to relays when its
    transaction commits, at any later time, and until then later events of its key rightly go ahead.
    The time of that commit is not known afterwards. A delayed or replayed event rightly goes later
    too.

    The settlement of a row is a proof. `settled_at` of a PROCESSED row was set after the broker's
    acknowledgement. `created_at` of another row was set before that row could be sent. Both times
    are by the same database's clock. So if B was created after A had settled, A had its record
    before B existed. If the first record of B precedes the first record of A nevertheless, the
    topic contradicts the outbox, despite any transactions, delays and retries. This check finds
    inversions of events that were written apart, and none of events that were open together.

    - Both first records must be in the same partition, with all records of A: offsets of different
      partitions do not compare, and the partition of a key changes when partitions are added.
    - The topic must not have lost a record of A: a second record proves nothing.
    - A database's clock may go back by some seconds: the times must be further apart.
    """
    is_complete = F.col("created_at") >= F.col("complete_since") + F.lit(margin)
    is_comparable = F.col("partition").isNotNull() & F.col("key").isNotNull()
    # Each incomparable event is its own window: otherwise all of them would go to one task.
    line = F.when(is_comparable, F.col("key")).otherwise(F.col("event_id"))
    before = (
        SparkWindow.partitionBy("upstream", "kind", "topic", "partition", is_comparable, line)
        .orderBy("first.offset")
        .rowsBetween(SparkWindow.unboundedPreceding, -1)
    )
    # The latest creation time of the events whose records precede this one.
    latest = F.max("created_at").over(before)
    was_settled = F.col("upstream_status") == _SENT
    is_overtaken = latest > F.col("published_at") + F.lit(_CLOCK_STEP)
    inverted = reduce(and_, [is_comparable, was_settled, is_complete, is_overtaken])
    return events.withColumn("in_order", ~F.coalesce(inverted, F.lit(col=False)))
