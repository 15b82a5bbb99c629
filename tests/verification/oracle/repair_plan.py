"""Additional input of a night's repair: losses of topics and inboxes, and discards.

Rows contain nothing about topics and parked records, so these are chosen at random among those that
fit. The way of running the repair is random too: its request, and whether its process ends.
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
"""Share of the repairs whose processes end at each step."""
WINDOW_SHARE: Final = 0.25
"""Share of the repairs of a run that has listed only events written since some time."""
LOST_SHARE: Final = 0.25
"""Share of the repairs of services of which one inbox has lost rows of existing effects."""
ALONE_SHARE: Final = 0.4
"""Share of the repairs in which a group gets a missing event by the copy for all groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairPlan:
    """The events missing from their topics, and the records that an operator has discarded."""

    absent: tuple[Row, ...]
    discarded: frozenset[Pair]
    absent_alone: bool
    """An operator requests the absent events, and no other findings of the run."""
    left_out: frozenset[Pair]
    """Missing events of groups that are outside of the repair.

    The run has not listed them, because they are older, or the operator does not request them.
    """
    lost: LostInbox | None
    """For one service: effects of its groups that its inbox does not know."""
    is_ended: bool
    """Its process ends at each of its steps, and another one restarts the repair."""

    @property
    def busy_share(self) -> float:
        """Return the share of steps at which business continues."""
        return 0.1 if self.is_ended else 0.35

    @property
    def absent_ids(self) -> frozenset[UUID]:
        """Return the events that are published again, if permitted."""
        return frozenset(row["event_id"] for row in self.absent)

    @property
    def lost_effects(self) -> frozenset[Effect]:
        """Return the effects of groups without a row."""
        return frozenset() if self.lost is None else self.lost.effects

    def listed(self, began: datetime) -> Iterator[ListedRow]:
        """Yield the absent events that a run with topics lists."""
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
        """Plant the discarded records in the databases of their groups."""
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
    """Choose some sent events, half of them among those that groups lack."""
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
    """Choose the pairs that were written before one of them."""
    written = {(row["service"], row["event_id"]): row["created_at"] for row in rows.outbox}
    at = {pair: written.get((pair.upstream, pair.event_id)) for pair in missing}
    times = sorted(time for time in at.values() if time is not None)
    since = r.choice(times) if times else 0
    return frozenset(pair for pair, time in at.items() if time is not None and time < since)


def _some(r: Random, least: int, rows: list[Row]) -> list[Row]:
    return r.sample(rows, min(len(rows), r.randint(least, MOST_ABSENT)))
