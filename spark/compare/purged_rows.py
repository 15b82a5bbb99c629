"""Whether a missing row can have been purged, by its possible age; and ambiguous cases."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.facts import Fact
from shieldtx.reconcile.verdicts import Verdict


def first_trace() -> Column:
    """Return the earliest time at which the missing rows can have been settled, and so be purged.

    Groups handle an event after its record was sent; for a delayed event, that is long after it was
    written. An event that was sent more than once may have arrived with its first record, long
    before its row was settled: the time of writing counts. The writer's clock sets that time, so
    the time of arrival counts as well. For the rollback of an event that was given up, see
    `owes_rollback`.
    """
    is_commit = F.col("kind") == TxKind.COMMIT.value
    is_sent = is_commit & (F.col("upstream_status") == OutboxStatus.PROCESSED.value)
    was_sent_once = ~F.coalesce("upstream_unconfirmed", F.lit(col=False))
    return F.coalesce(
        F.when(is_sent & was_sent_once, F.least("published_at", "received_at")),
        F.least("event_time", "received_at"),
        F.when(was_sent_once, F.col("published_at")),
        F.col("created_at"),
    )


def owes_rollback() -> Column:
    """Return whether a group gave an event up so recently that its rollback must exist if written.

    The rollback is written in the same transaction and database, whatever the upstream has purged.
    NULL: the rollback may have been purged, or the event was not given up.
    """
    is_given_up = F.col("downstream_status") == InboxStatus.MAX_RECONSUMED.value
    is_late = unless_unknown(F.col("settled_at") >= F.col("horizon"), otherwise=True)
    return F.when(is_given_up & is_late, F.lit(col=True))


def is_ambiguous() -> Column:
    """Return whether a missing row may have been purged, and no run in time could judge it.

    For an event that both sides have, the missing row is an earlier row of the group.
    """
    is_too_old = F.col("verdict") == Verdict.TOO_OLD.value
    is_any = _was_sent_again() | _came_late() | _was_settled_late()
    is_done = F.col("verdict").isin(Verdict.MATCHED.value, Verdict.REFUSED.value)
    return unless_unknown((is_too_old & is_any) | (is_done & _came_again()), otherwise=False)


def _came_again() -> Column:
    """Return whether a group may have had the event before, and purged that row meanwhile.

    The group recognizes an event by its row. Without the row, it applies or compensates an event
    once more.
    """
    has_acted = F.col("downstream_status").isin(
        InboxStatus.PROCESSED.value, InboxStatus.MAX_RECONSUMED.value
    )
    is_commit = F.col("kind") == TxKind.COMMIT.value
    return unless_unknown(
        has_acted
        & (is_commit | F.col("answered"))
        & (F.col("settled_at") >= F.col("horizon"))
        & (_first_arrival() <= F.col("received_at") - F.col("memory")),
        otherwise=False,
    )


def _first_arrival() -> Column:
    """Return the earliest time at which a group can have had an event that was sent.

    For an event that was sent once, that is the settlement of its row. An event that was sent more
    than once may have come as soon as it was due: when it was written, or when its delay ended.
    """
    was_sent_again = F.coalesce("upstream_unconfirmed", F.lit(col=False))
    return F.when(was_sent_again, F.col("upstream_due_at")).otherwise(F.col("published_at"))


def _was_sent_again() -> Column:
    """Return whether a missing event was sent more than once, and settled after the horizon.

    A group that has handled the first record purges its row earlier than the outbox does. A group
    that has received no record looks the same.
    """
    return unless_unknown(
        (F.col("upstream_status") == OutboxStatus.PROCESSED.value)
        & F.col("downstream_status").isNull()
        & F.col("upstream_unconfirmed")
        & (F.col("published_at") >= F.col("horizon")),
        otherwise=False,
    )


def _came_late() -> Column:
    """Return whether an event was older than all kept rows when its arrival or rollback came.

    Either an arrival without an outbox row: a delayed event, or one that was received long after it
    was sent. Or a rollback without a cause.
    """
    is_unknown = F.col("upstream_status").isNull() & (
        F.col("downstream_status") != InboxStatus.FENCED.value
    )
    is_unfounded = (
        (F.col("kind") == TxKind.COMMIT.value)
        & (F.col("upstream_status") == OutboxStatus.PROCESSED.value)
        & (F.col("downstream_status") == InboxStatus.PROCESSED.value)
        & F.col("answered")
    )
    came_at = F.when(is_unknown, F.col("received_at")).when(is_unfounded, F.col("answered_at"))
    all_that_is_kept = F.col("watermark") - F.col("horizon")
    return unless_unknown(
        (came_at >= F.col("horizon")) & (first_trace() <= came_at - all_that_is_kept),
        otherwise=False,
    )


def _was_settled_late() -> Column:
    """Return whether a rollback older than the horizon was settled recently without a compensation.

    The rollback was FAILED or DEAD for a long time, and replayed. Another rollback may have
    compensated the event before, and have been purged since.
    """
    return unless_unknown(
        (F.col("kind") == TxKind.ROLLBACK.value)
        & (F.col("downstream_status") == InboxStatus.PROCESSED.value)
        & ~F.col("answered")
        & F.coalesce(Fact.OWES.value, F.lit(col=True))
        & (first_trace() < F.col("horizon"))
        & (F.col("settled_at") >= F.col("horizon")),
        otherwise=False,
    )


def unless_unknown(condition: Column, *, otherwise: bool) -> Column:
    """Return a condition that is never NULL."""
    return F.coalesce(condition, F.lit(otherwise))
