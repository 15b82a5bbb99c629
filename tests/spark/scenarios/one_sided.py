"""Scenarios in which one side alone has a row."""

from __future__ import annotations

from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.scenarios.vocabulary import HOUR, TYPES, I, Scenario, V, effect, some
from tests.spark.world import Group, Planted, World


def lost(w: World) -> None:
    type_, group = some(w)
    event = w.event(type_)
    w.report(event, group, V.MISSING_DOWNSTREAM)
    w.rest(event, group)


def lost_by_all(w: World) -> None:
    event = w.event(w.random.choice(TYPES))
    w.rest(event, verdict=V.MISSING_DOWNSTREAM)


def invented(w: World) -> None:
    status = w.random.choice((I.PROCESSED, I.INIT, I.FENCED, I.MAX_RECONSUMED))
    ghost_of_some(w, V.UNKNOWN_UPSTREAM, status)


def invented_rollback(w: World) -> None:
    event = effect(w)
    by = w.random.choice(event.groups).service
    ghost = Planted(
        id=w.new_id(HOUR),
        upstream=by,
        type=event.type,
        key=event.key,
        payload="{}",
        written_age=HOUR,
        kind=TxKind.ROLLBACK,
        cause=(event.id, event.upstream),
    )
    w.returned(ghost, elsewhere=False)
    w.report(ghost, w.compensator(ghost), V.UNKNOWN_UPSTREAM)


def ghost_of_some(w: World, verdict: Verdict, status: InboxStatus, age: float = HOUR) -> None:
    type_, group = some(w)
    ghost_of(w, type_, group, verdict, status, age)


def ghost_of(
    w: World, type_: str, group: Group, verdict: Verdict, status: InboxStatus, age: float
) -> None:
    ghost = Planted(
        id=w.new_id(age),
        upstream=type_.partition(".")[0],
        type=type_,
        key=w.new_key(),
        payload="{}",
        written_age=age,
    )
    w.got(ghost, group, status)
    w.report(ghost, group, verdict)


SCENARIOS: tuple[Scenario, ...] = (
    lost,
    lost_by_all,
    invented,
    invented_rollback,
)
