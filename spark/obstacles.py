"""The messages of a run in addition to its verdicts: obstacles to judging, and remarks.

For some of them, the databases are queried for rows by which no group is judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from shieldtx.reconcile.expectations import Received
from shieldtx.reconcile.request import ReconcileRequest
from shieldtx.reconcile.unnamed_groups import mistyped_former_groups, unnamed_groups
from shieldtx.reconcile.window import Clock

from .judging import Judged
from .results.collect import ahead_in, ambiguous_in, unlisted_in
from .sources.for_others import waiting_for_others
from .sources.former_groups import still_receiving
from .sources.jdbc import Databases
from .sources.moved_types import types_moved
from .sources.other_sources import OtherSources
from .sources.received_from_others import waiting_from_others
from .sources.rollbacks_of_others import unsent_rollbacks_of_others


def obstacles_of(
    databases: Databases,
    found: Judged,
    others: OtherSources,
    clocks: Mapping[str, Clock],
    received: Collection[Received],
) -> Iterator[str]:
    """Yield sentences for reasons why the run is not clean, in addition to mismatches.

    `clocks` are the clocks by which the rows were judged; `received` has all receipts ever seen.
    """
    yield from _unseen(found, clocks)
    yield from (problem for _, problem in found.expectation.obstacles)
    yield from others.obstacles
    yield from unlisted_in(found.tallies)
    yield from ambiguous_in(found.tallies)
    yield from ahead_in(found.tallies)
    yield from found.topic_comparison.obstacles
    yield from waiting_for_others(databases, clocks)
    yield from unsent_rollbacks_of_others(databases, clocks)
    yield from waiting_from_others(databases, clocks)
    yield from mistyped_former_groups(databases.request.members, received)
    yield from still_receiving(databases)
    yield from types_moved(databases, found.expectation.routes)


def _unseen(found: Judged, clocks: Mapping[str, Clock]) -> Iterator[str]:
    """Yield obstacles of databases that no stream reports.

    A service has no stream if none of its rows is seen, as with a replica of another database.
    """
    named = [window.obstacle for window in found.windows.values()]
    for clock in clocks.values():
        if clock.obstacle and not any(clock.obstacle in each for each in named):
            yield clock.obstacle


def remarks_of(
    request: ReconcileRequest, found: Judged, clocks: Mapping[str, Clock]
) -> Iterator[str]:
    """Yield sentences that an operator should know and that do not affect the outcome."""
    yield from request.remarks
    yield from (clock.remark for clock in clocks.values() if clock.remark)
    yield from found.expectation.remarks
    yield from unnamed_groups(request.members, found.received, earlier=request.past.received)
