"""The outbox rows that a run compares with topics, and the way to read them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from shieldtx.reconcile.window import Clock, window_of

from ..sources import outbox_for_topics
from ..sources.jdbc import Databases
from ..sources.row_filters import MOST_LOOKUPS
from . import topic_transforms


def judged(
    databases: Databases, records: DataFrame, horizons: DataFrame, clocks: Mapping[str, Clock]
) -> DataFrame:
    """Return the verdicts on events and their topics, from the results of `sources.topics`."""
    request = databases.request
    return topic_transforms.judged(
        _outboxes(databases, records),
        records,
        horizons,
        request=request,
        windows={name: window_of([clock], margin=request.margin) for name, clock in clocks.items()},
    )


def _outboxes(databases: Databases, records: DataFrame) -> DataFrame:
    """Return the selected rows, and the rows of selected records."""
    outbox = outbox_for_topics.outboxes(databases)
    selection = databases.request.selection
    if not selection.moved_since:
        return outbox
    outbox = outbox.persist()
    alone = topic_transforms.without_rows(outbox, records, selection).distinct()
    return outbox_for_topics.with_rows_of(
        databases, outbox, alone.limit(MOST_LOOKUPS + 1).collect()
    )
