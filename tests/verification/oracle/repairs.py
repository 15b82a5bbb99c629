"""Repairs of the findings of a night: what they must change, and what they must not.

The rows are in real databases. Most repairs die at each of their steps and are restarted, and
business continues in between; then real relays and consumers run. Rows in order must be unchanged.
No event may be applied twice or after its rollback. Repaired events must be in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import select

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.repair import RepairAction
from shieldtx.reconcile.repair.decisions import PART_OF_RETENTION, Policy
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.repair.repair import Repair
from shieldtx.reconcile.repair.tally import RepairReport
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.repair import SqlRepairStore
from tests.spark.planting import Service
from tests.verification.oracle import repair_order
from tests.verification.oracle.business import Business
from tests.verification.oracle.facts import Row, Rows
from tests.verification.oracle.history import History, Pair
from tests.verification.oracle.nights import Verdicts
from tests.verification.oracle.reading import Reading
from tests.verification.oracle.repair_plan import RepairPlan, a_plan
from tests.verification.oracle.services import Effect, Services
from tests.verification.oracle.setting import Judged
from tests.verification.oracle.spark_nights import fill

V = Verdict
MOST_STEPS: Final = 400
MENDED: Final = frozenset({V.MISSING_DOWNSTREAM, V.STUCK, V.NEITHER_EFFECT_NOR_COMPENSATION})
"""Verdicts that a repair and running workers resolve, unless left to an operator."""


class Killed(BaseException):
    """The process of the repair ends here."""


@dataclass(kw_only=True)
class DyingStore:
    """A store whose process ends before or after one of its transactions."""

    store: SqlRepairStore
    steps: Iterator[int]
    """One step for each moment at which the process may end."""
    dies_at: int | None
    """None: the process does not end."""
    work: Callable[[int], None]
    """At one of these moments, relays and consumers do all pending work."""
    released: set[UUID]
    """The events that this or another store has released to a relay."""

    def __getattr__(self, name: str) -> Any:
        """Delegate read-only calls."""
        return getattr(self.store, name)

    def repair(self, *given: Any, **named: Any) -> Any:
        """Repair, and perhaps end."""
        return self._dying(self._repair, given, named)

    def hand_over(self, *given: Any, **named: Any) -> Any:
        """Hand over, and perhaps end."""
        return self._dying(self.store.hand_over, given, named)

    def _repair(self, action: RepairAction, *given: Any, **named: Any) -> Any:
        done = self.store.repair(action, *given, **named)
        if action is RepairAction.RELEASE_EVENT:
            self.released |= done.events
        return done

    def _dying(self, do: Any, given: Any, named: Any) -> Any:
        self._step()
        done = do(*given, **named)
        self._step()
        return done

    def _step(self) -> None:
        step = next(self.steps)
        self.work(step)
        if step == self.dies_at:
            raise Killed


@dataclass(kw_only=True, slots=True)
class Repaired:
    """The outcome of a repair and of the workers after it."""

    before: Verdicts
    after: Verdicts
    steps: int
    """Steps at which the repair has ended and was restarted."""
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairedNight:
    """One night of a history, in the databases of these services."""

    history: History
    night: Judged
    services: Mapping[str, Service]

    def run(self) -> Repaired:
        """Repair, run the workers, and return everything that is wrong."""
        first = self.history.setting.services[0]
        began = self.services[first].now() - timedelta(minutes=self.night.at)
        fill(self.history, self.night, self.services, began=began)
        rows_before, whole_before = self._read(began)
        found = self._judge(rows_before, self.night)
        plan = a_plan(self.history.random, rows_before, found, self.night)
        plan.plant(self.services)
        found = {pair: verdict for pair, verdict in found.items() if pair not in plan.left_out}
        if plan.absent_alone:
            found = {}
        listed = [*plan.listed(began), *self._listed(rows_before, found, began)]
        self.history.random.shuffle(listed)
        with Services(setting=self.history.setting, services=self.services) as running:
            business = Business(r=self.history.random, running=running, plan=plan, rows=rows_before)
            released: set[UUID] = set()
            steps, report = self._repair(listed, began, business, released)
            running.go_on()
        rows_after, whole_after = self._read(began)
        # An hour later, with nothing done since: the remaining mismatches, then and now.
        later = replace(self.night, at=self.night.at + self.night.margin + 5)
        before, after = self._judge(rows_before, later), self._judge(rows_after, later)
        again = self._work(self._stores(), began, plan).run(listed)
        result = Repaired(before=before, after=after, steps=steps)
        result.wrong += self._touched(whole_before, whole_after, before, plan)
        result.wrong += self._badly_applied(rows_before, Counter(running.applied), plan)
        result.wrong += self._released(rows_before, released, plan)
        result.wrong += self._delivered(rows_after, plan)
        result.wrong += repair_order.inverted(rows_before, rows_after, running.applied)
        unlisted = self._can_still_be_delivered(plan, rows_before, rows_after)
        result.wrong += repair_order.ahead_of(unlisted, rows_before, rows_after, running.applied)
        result.wrong += self._not_put_right(found, before, after, report)
        missing = [pair for pair, verdict in found.items() if verdict is V.MISSING_DOWNSTREAM]
        result.wrong += repair_order.refused_in_vain(missing, rows_after, report)
        result.wrong += repair_order.awaited_in_vain(missing, rows_before, report)
        if any(rows.done for rows in again.repaired.values()):
            result.wrong.append(f"a second repair had something to do: {again.repaired}")
        return result

    # --- the repair ------------------------------------------------------------------------------

    def _repair(
        self, rows: list[ListedRow], began: datetime, business: Business, released: set[UUID]
    ) -> tuple[int, RepairReport]:
        """Repair a row at a time; the process ends at each step, and another one restarts.

        Some repairs do not end early. Business sometimes continues in between.
        """
        for deaths, dies_at in enumerate(range(MOST_STEPS) if business.plan.is_ended else [None]):
            steps = iter(range(MOST_STEPS))
            stores = {
                name: DyingStore(
                    store=store,
                    steps=steps,
                    dies_at=dies_at,
                    work=business.goes_on,
                    released=released,
                )
                for name, store in self._stores().items()
            }
            try:
                return deaths, self._work(stores, began, business.plan).run(rows)
            except Killed:
                continue
        raise AssertionError(f"the repair takes more than {MOST_STEPS} steps")

    def _stores(self) -> dict[str, SqlRepairStore]:
        return {
            name: SqlRepairStore(s.engine, s.tables, source=name)
            for name in self.history.setting.services
            for s in [self.services[name]]
        }

    def _work(self, stores: Any, began: datetime, plan: RepairPlan) -> Repair:
        at = began + timedelta(minutes=self.night.at)
        kept = {name: r for name, r in self.night.retention.items() if r is not None}
        groups = {name: self.history.setting.expected(name, self.night) or () for name in stores}
        policy = Policy(
            services=frozenset(stores),
            named=frozenset({V.ABSENT_FROM_TOPIC}),
            groups=groups,
            for_others={name: self.history.setting.others(name, self.night) for name in stores},
            young_since={
                name: at - timedelta(minutes=minutes) * PART_OF_RETENTION
                for name, minutes in kept.items()
            },
            **(plan.lost.known(began) if plan.lost else {}),
        )
        return Repair(
            stores=stores,
            policy=policy,
            run_id="night",
            who="oracle",
            batch=1,
            looked_up=2,
            compared=4,
        )

    # --- rows ------------------------------------------------------------------------------------

    def _read(self, began: datetime) -> tuple[Rows, dict[tuple[str, ...], Mapping[str, Any]]]:
        """Read all rows, in the form of the rules and as they are."""
        outbox: list[Row] = []
        inbox: list[Row] = []
        whole: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for name in self.history.setting.services:
            service = self.services[name]
            for table, rows in ((service.tables.outbox, outbox), (service.tables.inbox, inbox)):
                with service.engine.connect() as connection:
                    found = connection.execute(select(table).order_by(table.c.seq)).mappings().all()
                for values in found:
                    row = _row(name, dict(values), began)
                    rows.append(row)
                    key = name, str(row["group"]), row["source"], str(row["event_id"])
                    whole[key] = dict(values)
        return Rows(outbox=outbox, inbox=inbox), whole

    def _judge(self, rows: Rows, night: Judged) -> Verdicts:
        return Reading(setting=self.history.setting, night=night, rows=rows).verdicts()

    def _listed(self, rows: Rows, found: Verdicts, began: datetime) -> Iterator[ListedRow]:
        sent = {(row["source"], row["event_id"]): row for row in rows.outbox}
        received = {
            (row["service"], row["group"], row["source"], row["event_id"]): row
            for row in rows.inbox
        }
        for pair, verdict in found.items():
            if verdict.is_mismatch:
                up = sent.get((pair.upstream, pair.event_id))
                down = received.get((pair.downstream, pair.group, pair.upstream, pair.event_id))
                yield _listed_row(pair, verdict, up, down, began)

    # --- what must hold, and what must not -------------------------------------------------------

    def _touched(
        self,
        before: Mapping[Any, Any],
        after: Mapping[Any, Any],
        verdicts: Verdicts,
        plan: RepairPlan,
    ) -> Iterator[str]:
        """Yield the changed rows that were at rest, and that no repair was requested for."""
        asked = {str(pair.event_id) for pair, v in verdicts.items() if v.is_mismatch}
        published = {
            (row["service"], "None", row["source"], str(row["event_id"])) for row in plan.absent
        }
        for key, row in before.items():
            is_asked = key[-1] in asked or key in published
            if row["settled_at"] is not None and not is_asked and after.get(key) != row:
                yield f"{key} was at rest, and was changed"

    def _delivered(self, after: Rows, plan: RepairPlan) -> Iterator[str]:
        """Yield the events that a group got though an operator had discarded their record there."""
        for row in after.inbox:
            pair = Pair(
                row["kind"].value, row["source"], row["service"], row["group"], row["event_id"]
            )
            if pair in plan.discarded:
                yield f"{pair} was delivered though an operator had discarded its record"

    def _can_still_be_delivered(
        self, plan: RepairPlan, before: Rows, after: Rows
    ) -> Iterator[Pair]:
        """Yield the pairs that the run has not listed, and another repair can hand over."""
        taken_back = _taken_back(before) | _taken_back(after)
        sent = {(row["service"], row["event_id"]): row for row in before.outbox}
        for pair in plan.left_out:
            retention = self.night.retention[pair.downstream]
            row = sent[pair.upstream, pair.event_id]
            kept = float("inf") if retention is None else retention * PART_OF_RETENTION
            since = row["created_at"] if row.get("unconfirmed") else row["settled_at"]
            is_young = since >= self.night.at - kept
            is_lost = (pair.downstream, pair.group, pair.event_id) in plan.lost_effects
            if is_young and not (is_lost or pair.event_id in taken_back or pair in plan.discarded):
                yield pair

    def _badly_applied(
        self, rows: Rows, effects: Counter[Effect], plan: RepairPlan
    ) -> Iterator[str]:
        """Yield the events applied twice, or after their rollback, or after a later event."""
        applied = {
            (row["service"], row["group"], row["event_id"])
            for row in rows.inbox
            if row["status"] is InboxStatus.PROCESSED
        }
        forgotten = self.history.forgotten(self.night.at)
        received = repair_order.received_by(rows)
        taken_back = _taken_back(rows)
        overtaken = repair_order.overtaken(rows)
        for effect, times in effects.items():
            if times > 1 or effect in applied:
                yield f"{effect} was applied {times + (effect in applied)} times"
            if effect in forgotten and self._was_settled(rows, effect[-1]):
                yield f"{effect} was applied again by a group that had purged it"
            if effect in plan.lost_effects and self._was_settled(rows, effect[-1]):
                yield f"{effect} was applied again by a group whose inbox had lost it"
            if effect in overtaken:
                yield f"{effect} was applied after a later event of its key"
            is_lost = effect not in received
            if is_lost and effect[-1] in taken_back and self._was_settled(rows, effect[-1]):
                yield f"{effect} was applied though it had been taken back"

    def _released(self, rows: Rows, released: set[UUID], plan: RepairPlan) -> Iterator[str]:
        """Yield the released events that a relay must not send.

        A running relay sends them anyway, so only the actions of the repair count here.
        """
        forgotten = {effect[-1] for effect in self.history.forgotten(self.night.at)}
        for event_id in released & forgotten:
            yield f"{event_id} was released though a group has applied and purged it"
        for event_id in released & {effect[-1] for effect in plan.lost_effects}:
            yield f"{event_id} was released though an inbox has lost its row"
        for event_id in released & _taken_back(rows):
            yield f"{event_id} was released though it had been taken back"

    def _was_settled(self, rows: Rows, event_id: UUID) -> bool:
        """Return whether no relay has sent the event by itself."""
        return any(
            row["event_id"] == event_id and row["status"] is OutboxStatus.PROCESSED
            for row in rows.outbox
        )

    def _not_put_right(
        self, found: Verdicts, before: Verdicts, after: Verdicts, report: RepairReport
    ) -> Iterator[str]:
        """Yield the mismatches afterwards that were in order, or should have been repaired."""
        left = Counter[Verdict]()
        for (verdict, _), number in report.refused.items():
            left[verdict] += number
        remaining = Counter[Verdict]()
        for pair in before.keys() | after.keys():
            was, now = before.get(pair), after.get(pair)
            if now is None or not now.is_mismatch:
                continue
            if was is None and now is V.PARKED and pair.kind == TxKind.ROLLBACK.value:
                # The relay sent it afterwards, to a group without expectations. By the ids of
                # histories, which have an old date, its event is too old.
                continue
            if was is None or not was.is_mismatch:
                yield f"{pair} was {was}, and is {now}"
            elif now is was and found.get(pair) is was:
                remaining[now] += 1
        for verdict in MENDED:
            # Running workers continue stuck events, whatever a repair may do about them.
            most = 0 if verdict is V.STUCK else left[verdict]
            if remaining[verdict] > most:
                yield f"{remaining[verdict]} are {verdict} still, and {most} were left alone"


def _taken_back(rows: Rows) -> set[UUID]:
    return {row["causation_id"] for row in (*rows.outbox, *rows.inbox) if _takes_back(row)}


def _takes_back(row: Row) -> bool:
    return row["kind"] is TxKind.ROLLBACK and row["status"] not in {
        OutboxStatus.DISCARDED,
        InboxStatus.DISCARDED,
    }


def _row(service: str, values: dict[str, Any], began: datetime) -> Row:
    group = values.get("consumer_group")
    statuses = OUTBOX.states if group is None else INBOX.states
    row: Row = {
        "waiting": False,
        "holds_key": False,
        **values,
        "service": service,
        "group": group,
        "kind": TxKind(values["tx_kind"]),
        "status": next(status for status in statuses if status.value == values["status"]),
    }
    times = {name: value for name, value in row.items() if isinstance(value, datetime)}
    return row | {name: (value - began) / timedelta(minutes=1) for name, value in times.items()}


def _listed_row(
    pair: Pair, verdict: Verdict, up: Row | None, down: Row | None, began: datetime
) -> ListedRow:
    def time(row: Row | None) -> datetime | None:
        at = None if row is None else row["settled_at"]
        return None if at is None else began + timedelta(minutes=at)

    row = up or down
    assert row is not None
    return ListedRow(
        kind=TxKind(pair.kind),
        upstream=pair.upstream,
        downstream=pair.downstream,
        group=pair.group,
        event_id=pair.event_id,
        topic=row["topic"],
        event_type=row["event_type"],
        verdict=verdict,
        upstream_status=None if up is None else up["status"],
        downstream_status=None if down is None else down["status"],
        upstream_attempts=None if up is None else up["attempts"],
        attempts=None if down is None else down["attempts"],
        published_at=time(up),
        settled_at=time(down),
    )
