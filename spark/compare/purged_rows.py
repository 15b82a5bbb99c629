"""Whether a row that is missing can have been purged: how old it would be; what is ambiguous."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.facts import Fact
from shieldtx.reconcile.verdicts import Verdict


def first_trace() -> Column:
    """Return since when the rows that a verdict asks for can have been settled, and so be purged.

    What groups do with an event comes after its record was sent: of a delayed event, that is long
    after it was written. An event that was sent more than once may have arrived with its first
    record, long before its row was settled: it counts from when it was written. The event's own
    time comes from its writer's clock, so that the time of the arrival counts as well. For the
    rollback of an event that was given up, see `owes_rollback`.
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
    """Whether a group gave an event up so lately that its rollback is there, if it was written.

    That is in the same transaction and the same database, whatever the upstream has purged. NULL:
    the rollback may have been purged, or the event was not given up.
    """
    is_given_up = F.col("downstream_status") == InboxStatus.MAX_RECONSUMED.value
    is_late = unless_unknown(F.col("settled_at") >= F.col("horizon"), otherwise=True)
    return F.when(is_given_up & is_late, F.lit(col=True))


def is_ambiguous() -> Column:
    """Whether a row is missing that may have been purged, and a run in time could not judge it.

    Of an event that both sides have, that is an earlier row of the group.
    """
    is_too_old = F.col("verdict") == Verdict.TOO_OLD.value
    is_any = _was_sent_again() | _came_late() | _was_settled_late()
    is_done = F.col("verdict").isin(Verdict.MATCHED.value, Verdict.REFUSED.value)
    return unless_unknown((is_too_old & is_any) | (is_done & _came_again()), otherwise=False)


def _came_again() -> Column:
    """Whether a group may have had the event before, and have purged that row when it came again.

    It knows an event by its row. Without it, it applies an event once more, or compensates one.
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
    """Return since when a group can have had an event that was sent.

    Of one that was sent once, that is when its row was settled. One that was sent more than once
    may have come as soon as it was due, which is when it was written, or when its delay ended.
    """
    was_sent_again = F.coalesce("upstream_unconfirmed", F.lit(col=False))
    return F.when(was_sent_again, F.col("upstream_due_at")).otherwise(F.col("published_at"))


def _was_sent_again() -> Column:
    """Whether an event was sent more than once, lately enough to be missed, and is not.

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
    """Whether an event was older than all that is kept, already when what is to be judged came.

    That is an arrival without a row upstream: a delayed event, or one that was received long after
    it was sent. Or it is a rollback that nothing calls for.
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
    """Whether a rollback was settled lately without a compensation, and is older than the horizon.

    It was FAILED or DEAD for long, and replayed. Another rollback may have compensated the event
    before, and have been purged since.
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
