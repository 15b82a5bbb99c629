"""What a night of a repair is told besides what rows say: losses of topics and inboxes, discards.

Rows know nothing of topics and of parked records, so they are chosen at random among what they fit.
So is how the repair is run: what it is asked for, and whether its process ends.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Final
from uuid import UUID

from sqlalchemy import insert, text

from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.reconcile.findings import TOPICS
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.planting import Service
from tests.verification.oracle.facts import Row, Rows
from tests.verification.oracle.history import Pair
from tests.verification.oracle.lost_inboxes import LostInbox, a_lost_inbox
from tests.verification.oracle.nights import Verdicts
from tests.verification.oracle.services import Effect
from tests.verification.oracle.setting import Judged

MOST_ABSENT: Final = 5
DISCARDED_SHARE: Final = 0.2
ENDED_SHARE: Final = 0.6
"""Of the repairs: those whose processes end at each step."""
WINDOW_SHARE: Final = 0.25
"""Of the repairs: those of a run that has listed what was written since some time."""
LOST_SHARE: Final = 0.25
"""Of the repairs: those of services of which one inbox has lost rows of effects that are there."""
ALONE_SHARE: Final = 0.4
"""Of the repairs: a group that lacks an event gets it by the copy that is for all groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairPlan:
    """Which events are absent from their topics, and which records an operator has discarded."""

    absent: tuple[Row, ...]
    discarded: frozenset[Pair]
    absent_alone: bool
    """An operator asks for what is absent, and for nothing else that the run has found."""
    left_out: frozenset[Pair]
    """Of what groups lack: what the run has not listed, as it was written earlier, or what nobody
    asks for."""
    lost: LostInbox | None
    """Of one service: what its groups have had, though its inbox does not know."""
    is_ended: bool
    """Its process ends at each of its steps, and another one begins again."""

    @property
    def busy_share(self) -> float:
        """Return at which share of its steps business goes on."""
        return 0.1 if self.is_ended else 0.35

    @property
    def absent_ids(self) -> frozenset[UUID]:
        """Return the events that are published again, if they may be."""
        return frozenset(row["event_id"] for row in self.absent)

    @property
    def lost_effects(self) -> frozenset[Effect]:
        """Return what groups have applied, though they have no row of it."""
        return frozenset() if self.lost is None else self.lost.effects

    def listed(self, began: datetime) -> Iterator[ListedRow]:
        """Yield what a run that reads topics lists of the absent ones."""
        for row in self.absent:
            yield ListedRow(
                kind=row["kind"],
                upstream=row["service"],
                downstream=TOPICS,
                group=row["topic"],
                event_id=row["event_id"],
                topic=row["topic"],
                event_type=row["event_type"],
                verdict=Verdict.ABSENT_FROM_TOPIC,
                upstream_status=row["status"],
                downstream_status=None,
                upstream_attempts=row["attempts"],
                attempts=None,
                published_at=began + timedelta(minutes=row["settled_at"]),
                settled_at=None,
            )

    def plant(self, services: Mapping[str, Service]) -> None:
        """Leave the discarded records in the databases of their groups."""
        for service in services.values():
            prefix = "" if service.schema is None else f"{service.schema}."
            with service.engine.begin() as connection:
                connection.execute(text(f"TRUNCATE {prefix}shield_parked"))
        for offset, pair in enumerate(sorted(self.discarded)):
            service = services[pair.downstream]
            headers = {"ce_id": str(pair.event_id), "ce_source": pair.upstream}
            with service.engine.begin() as connection:
                now = service.now()
                values = {
                    "consumer_group": pair.group,
                    "topic": pair.upstream,
                    "record_partition": 0,
                    "record_offset": offset,
                    "digest": "",
                    "reason": "planted",
                    "record_headers": json.dumps(
                        [[n, base64.b64encode(v.encode()).decode()] for n, v in headers.items()]
                    ),
                    "parked_at": now,
                    "discarded_at": now,
                }
                connection.execute(insert(service.tables.parked).values(values))


def a_plan(r: Random, rows: Rows, found: Verdicts, night: Judged) -> RepairPlan:
    """Choose some events of those that were sent, half of them such that groups lack."""
    missing = sorted(
        pair for pair, verdict in found.items() if verdict is Verdict.MISSING_DOWNSTREAM
    )
    lacked = {pair.event_id for pair in missing if pair.kind == TxKind.COMMIT}
    sent = [
        row
        for row in rows.outbox
        if row["status"] is OutboxStatus.PROCESSED and row["settled_at"] < night.watermark
    ]
    absent_alone = r.random() < ALONE_SHARE
    least = MOST_ABSENT if absent_alone else 0
    absent = _some(r, least, [row for row in sent if row["event_id"] in lacked])
    absent += _some(r, 0, [row for row in sent if row["event_id"] not in lacked])
    left_out = _before(r, rows, missing) if r.random() < WINDOW_SHARE else frozenset()
    absent_alone = absent_alone and bool(absent)
    return RepairPlan(
        absent=tuple(absent),
        discarded=frozenset(pair for pair in missing if r.random() < DISCARDED_SHARE),
        absent_alone=absent_alone,
        left_out=frozenset(missing) if absent_alone else left_out,
        lost=a_lost_inbox(r, rows, found) if r.random() < LOST_SHARE else None,
        is_ended=r.random() < ENDED_SHARE,
    )


def _before(r: Random, rows: Rows, missing: list[Pair]) -> frozenset[Pair]:
    """Choose those that were written before one of them."""
    written = {(row["service"], row["event_id"]): row["created_at"] for row in rows.outbox}
    at = {pair: written.get((pair.upstream, pair.event_id)) for pair in missing}
    times = sorted(time for time in at.values() if time is not None)
    since = r.choice(times) if times else 0
    return frozenset(pair for pair, time in at.items() if time is not None and time < since)


def _some(r: Random, least: int, rows: list[Row]) -> list[Row]:
    return r.sample(rows, min(len(rows), r.randint(least, MOST_ABSENT)))
