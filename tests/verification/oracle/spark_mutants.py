"""Former defects of the job on Spark and of its stored runs, put back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.app import reconciliation_memory
from shieldtx.domain.states import InboxStatus
from shieldtx.reconcile import basis
from shieldtx.reconcile.observed import Past
from shieldtx.store.database_history import SqlDatabaseHistory
from spark import job, obstacles
from spark.compare import purged_rows, read_plan, transforms
from spark.sources import for_others, other_sources, outbox_inbox, row_filters, taken_back
from spark.sources.server_checks import Servers
from tests.verification.oracle import broken, damaged, healthy, odd_names, restores, topic_stories
from tests.verification.oracle.ahead import AHEAD
from tests.verification.oracle.foreign_sources import OF_FOREIGN_SOURCES
from tests.verification.oracle.mutants import Mutant, instead
from tests.verification.oracle.restores import database_is_restored
from tests.verification.oracle.unhandled import UNHANDLED


def _zero(*_: Any, **__: Any) -> str:
    return "0"


_other_sources = other_sources.other_sources


def _other_sources_are_left_out(*given: Any) -> Any:
    return replace(_other_sources(*given), obstacles=())


def _by_topics_alone(query: str) -> str:
    return query.replace(" OR o.event_type = ANY ({types})", "")


def _quoted_plainly(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _since_it_was_written() -> Column:
    return F.coalesce("event_time", "created_at")


def _owed_since_it_came() -> Column:
    is_given_up = F.col("downstream_status") == InboxStatus.MAX_RECONSUMED.value
    return F.when(is_given_up & (F.col("received_at") >= F.col("horizon")), F.lit(col=True))


_YES: Final = True
_SENT_ONCE: Final = outbox_inbox._OUTBOX.replace("o.unconfirmed", "false")


ON_SPARK: Final = (
    Mutant(
        name="N1 watermarks of another configuration",
        applied=instead(basis, "changes", lambda *_: []),
    ),
    Mutant(
        name="what a group has received is forgotten with the purge of its inbox",
        applied=instead(reconciliation_memory, "past_of", lambda *_: Past()),
        stories=(broken.record_is_lost,),
    ),
    Mutant(
        name="what a restored copy lacks counts as judged",
        applied=instead(reconciliation_memory, "as_restored", lambda runs, *_, **__: iter(runs)),
        stories=(database_is_restored,),
    ),
    Mutant(
        name="N2 events under another name are left out",
        applied=instead(job, "other_sources", _other_sources_are_left_out),
        stories=(damaged.is_left_under_a_former_name,),
    ),
    Mutant(
        name="events of a type for others wait unnoticed",
        applied=instead(for_others, "_COUNTED", _by_topics_alone(for_others._COUNTED)),
        stories=UNHANDLED,
    ),
    Mutant(
        name="a type of which no event was sent needs a group",
        applied=instead(read_plan, "unsent_types", lambda *_: frozenset()),
        stories=UNHANDLED,
    ),
    Mutant(
        name="a type that no group should receive is taken for one that was not sent",
        applied=instead(read_plan, "unsent_types", lambda _, types: frozenset(types)),
        stories=UNHANDLED,
    ),
    Mutant(
        name="what a service that takes no part has sent waits unnoticed",
        applied=instead(obstacles, "waiting_from_others", lambda *_: ()),
        stories=OF_FOREIGN_SOURCES,
    ),
    Mutant(
        name="N3 a later rollback brings no event into a further run",
        applied=instead(read_plan, "taken_back", lambda *_: {}),
        stories=(damaged.is_taken_back_days_later,),
    ),
    Mutant(
        name="N10 texts are hashed in the bytes of their database",
        applied=instead(Servers, "all_utf8", _YES),
        stories=(healthy.is_applied,),
    ),
    Mutant(
        name="a later effect brings no settled rollback into a further run",
        applied=instead(taken_back, "_WITHOUT_EFFECT", taken_back._BY_INBOX),
        stories=(damaged.effect_is_not_taken_back,),
    ),
    Mutant(
        name="N11 a restored database goes unnoticed",
        applied=instead(SqlDatabaseHistory, "lacks", lambda *_: ()),
        stories=(damaged.copy_lacks_the_newest,),
    ),
    Mutant(
        name="N11 a database that was put back goes unnoticed",
        applied=instead(SqlDatabaseHistory, "lacks", lambda *_: ()),
        stories=(restores.database_is_restored,),
    ),
    Mutant(
        name="N11 a server of another past goes unnoticed",
        applied=instead(basis, "losses", lambda *_: []),
        stories=(restores.database_is_restored,),
    ),
    Mutant(
        name="sent twice, and taken for sent once",
        applied=instead(outbox_inbox, "_OUTBOX", _SENT_ONCE),
        stories=(topic_stories.is_sent_twice,),
    ),
    Mutant(
        name="sent twice, not received, and the run is good",
        applied=instead(obstacles, "ambiguous_in", lambda _: ()),
        stories=(broken.record_of_a_replayed_event_is_lost,),
    ),
    Mutant(
        name="a delayed event is as old as its writing",
        applied=instead(transforms, "first_trace", _since_it_was_written),
        stories=(damaged.is_taken_back_days_later,),
    ),
    Mutant(
        name="a rollback is due since its event came",
        applied=instead(transforms, "owes_rollback", _owed_since_it_came),
        stories=(damaged.rollback_row_is_lost,),
    ),
    Mutant(
        name="a delayed event without an outbox row, and the run is good",
        applied=instead(purged_rows, "_came_late", lambda: F.lit(col=False)),
        stories=(damaged.outbox_row_is_lost,),
    ),
    Mutant(
        name="a rollback that was settled late without a compensation, and the run is good",
        applied=instead(purged_rows, "_was_settled_late", lambda: F.lit(col=False)),
        stories=(damaged.rollback_is_settled_late,),
    ),
    Mutant(
        name="applied when an earlier row may be purged, and the run is good",
        applied=instead(purged_rows, "_came_again", lambda: F.lit(col=False)),
        stories=(broken.is_applied_twice,),
    ),
    Mutant(
        name="N17 payloads alone are compared",
        applied=instead(outbox_inbox, "envelope_digest", _zero),
        stories=(damaged.content_differs,),
    ),
    Mutant(
        name="lost in an hour by a clock ahead, and the run is good",
        applied=instead(obstacles, "ahead_in", lambda _: ()),
        stories=AHEAD,
    ),
    Mutant(
        name="N18 parked without an error, and the run is good",
        applied=instead(obstacles, "unlisted_in", lambda _: ()),
        stories=(damaged.is_parked_without_a_reason,),
    ),
    Mutant(
        name="N20 a backslash in a literal is a backslash",
        applied=instead(row_filters, "quoted", _quoted_plainly),
        stories=(odd_names.record_of_an_odd_type_is_lost,),
    ),
)
