"""Whether the records of a key lie in the order in which its events were written."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.domain.states import OutboxStatus

_SENT: Final = OutboxStatus.PROCESSED.value
_CLOCK_STEP: Final = timedelta(seconds=10)
"""By which a database's clock may go back while it runs or fails over."""


def with_order(events: DataFrame, margin: timedelta) -> DataFrame:
    """Add `in_order`: False only where a later event of the key provably overtook this one.

    It is not enough that an event has the lower `seq`, or was created earlier: it becomes visible
    to relays when its transaction commits, which may be as late as its writer likes, and until then
    every later event of its key rightly goes ahead. When that commit was, nobody can tell
    afterwards. A delayed or replayed event rightly goes later too.

    What can be told is when a row was settled: `settled_at` of a PROCESSED row was stamped after
    the broker had acknowledged it, and `created_at` of another row before that one could be sent,
    both by the same database's clock. So where B was created after A had settled, A had its record
    before B existed: if the first record of B lies before the first one of A all the same, the
    topic contradicts the outbox, whatever transactions, delays and retries there were. That finds
    an inversion whose events were written apart; of those that were open together it says nothing.

    - Both first records have to be in the same partition, and all records of A in that one:
      offsets of different partitions do not compare, and a key changes its partition when some are
      added.
    - The topic must not have lost a record of A: its second one is no proof.
    - A database's clock may go back by some seconds: the two have to be further apart.
    """
    is_complete = F.col("created_at") >= F.col("complete_since") + F.lit(margin)
    is_comparable = F.col("partition").isNotNull() & F.col("key").isNotNull()
    # Each event that has no part in any order by itself: of one line, they would be one task's.
    line = F.when(is_comparable, F.col("key")).otherwise(F.col("event_id"))
    before = (
        SparkWindow.partitionBy("upstream", "kind", "topic", "partition", is_comparable, line)
        .orderBy("first.offset")
        .rowsBetween(SparkWindow.unboundedPreceding, -1)
    )
    # Of the records before this one, the latest writing of an event.
    latest = F.max("created_at").over(before)
    was_settled = F.col("upstream_status") == _SENT
    is_overtaken = latest > F.col("published_at") + F.lit(_CLOCK_STEP)
    inverted = reduce(and_, [is_comparable, was_settled, is_complete, is_overtaken])
    return events.withColumn("in_order", ~F.coalesce(inverted, F.lit(col=False)))
