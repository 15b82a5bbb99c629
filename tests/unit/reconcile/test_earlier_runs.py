"""The observations that a run takes over from earlier runs, and of which databases."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.basis import Basis, basis_of, from_json, to_json
from shieldtx.reconcile.earlier_runs import past_of, together
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Received
from shieldtx.reconcile.observed import Observed, Past
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase

PLACED = Received(
    downstream="stock",
    group="reserve",
    source="orders",
    kind=TxKind.COMMIT,
    topic="orders.placed",
    event_type="orders.placed",
)
MONTHLY = replace(PLACED, event_type="invoice.closed")
HISTORY = DatabaseHistory(
    system="7712", timeline="00000001", objects=(5, 16401, 16420), newest=(UUID(int=7), None)
)
NIGHT = datetime(2026, 3, 1, 2, tzinfo=UTC)


def service(name: str, **changed: Any) -> ServiceDatabase:
    return ServiceDatabase(name=name, url="postgresql://ann@db/x", **changed)


ORDERS, STOCK = service("orders"), service("stock")


def judged(*services: ServiceDatabase, history: DatabaseHistory = HISTORY, **of: Any) -> Basis:
    given = services or (ORDERS, STOCK)
    request = ReconcileRequest(services=given, folder=Path("unused"), **of)
    return basis_of(request, {each.name: history for each in given})


def ran(*seen: Received, of: Basis | None = None, **observed: Any) -> Basis:
    return replace(of or judged(), observed=Observed(received=seen, **observed))


def test_latest_run_has_the_observations_of_earlier_ones() -> None:
    """The latest run has taken over the earlier observations, except those that are over."""
    assert past_of([], judged()) == Past()
    assert past_of([ran(MONTHLY), ran(PLACED)], judged()).received == (MONTHLY,)


def test_aborted_or_unreadable_run_is_ignored() -> None:
    assert past_of([None, judged(), ran(PLACED)], judged()).received == (PLACED,)


@pytest.mark.parametrize(
    "earlier",
    [
        replace(judged(), rules=1),
        replace(judged(), rules=99),
        judged(margin=timedelta(minutes=1)),
        judged(ORDERS, replace(STOCK, retention=timedelta(days=1))),
        judged(ORDERS, STOCK, service("mail")),
        judged(history=replace(HISTORY, timeline="00000002", newest=(None, None))),
        # Its role had no right to query the system identifier.
        judged(history=replace(HISTORY, system=None)),
    ],
)
def test_other_rules_or_configuration_do_not_end_the_past(earlier: Basis) -> None:
    assert past_of([ran(PLACED, of=earlier)], judged()).received == (PLACED,)


@pytest.mark.parametrize(
    "earlier",
    [
        judged(history=replace(HISTORY, system="8000")),
        judged(history=replace(HISTORY, objects=(5, 16401, 99999))),
        judged(ORDERS),
        judged(STOCK),
    ],
)
def test_run_of_other_databases_or_services_is_ignored(earlier: Basis) -> None:
    assert past_of([ran(PLACED, of=earlier)], judged()).received == ()


def test_run_of_other_services_in_between_is_ignored() -> None:
    mail = judged(ORDERS, service("mail"))
    stock_alone = ran(replace(PLACED, source="mail"), of=judged(STOCK, service("mail")))

    assert past_of([ran(of=mail), ran(PLACED)], judged()).received == (PLACED,)
    assert past_of([stock_alone, ran(PLACED)], judged()).received == (PLACED,)
    assert past_of([ran(), stock_alone, ran(PLACED)], judged()).received == ()


def test_rollback_is_taken_over_if_its_event_writer_takes_part() -> None:
    back = replace(PLACED, kind=TxKind.ROLLBACK, causation_source="mail")

    assert past_of([ran(back)], judged()).received == ()
    three = judged(ORDERS, STOCK, service("mail"))
    assert past_of([ran(back, of=three)], three).received == (back,)


def test_start_time_of_a_former_group_is_taken_over() -> None:
    former = judged(ORDERS, replace(STOCK, former_groups=(FormerGroup(name="mail"),)))
    since = {"stock": {"mail": NIGHT}}

    assert past_of([ran(former_since=since), ran()], former).former_since["stock"] == since["stock"]
    assert past_of([ran(), ran(former_since=since)], former).former_since["stock"] == {}


def test_group_names_in_the_file_do_not_depend_on_the_past() -> None:
    named = replace(STOCK, groups=(ExpectedGroup(name="reserve", topics=("orders.placed",)),))
    assert past_of([ran(of=judged(ORDERS, named)), ran(PLACED)], judged()).received == ()


OLD = replace(judged(), rules=6)


def test_run_of_an_earlier_release_adds_its_observations() -> None:
    """The run ends no observation: it stored what inboxes held that night, and nothing earlier."""
    since = {"stock": {"mail": NIGHT}}

    past = past_of([ran(PLACED, of=OLD), ran(of=OLD), ran(MONTHLY, former_since=since)], judged())

    assert past.received == (MONTHLY, PLACED)
    assert past.former_since["stock"] == since["stock"]
    assert past_of([ran(), ran(PLACED, of=OLD), ran(MONTHLY)], judged()).received == ()


def test_latest_run_counts_among_runs_of_earlier_releases() -> None:
    assert past_of([ran(PLACED, of=OLD), ran(MONTHLY, of=OLD)], judged()).received == (PLACED,)
    of_orders = replace(judged(ORDERS), rules=6)
    runs = [ran(of=of_orders), ran(PLACED, of=OLD), ran(MONTHLY, of=OLD)]
    assert past_of(runs, judged()).received == (PLACED,)


def test_run_of_a_newer_release_is_read_as_far_as_known() -> None:
    newer = json.loads(to_json(ran(PLACED, of=replace(judged(), rules=99))))
    newer["moods"] = newer["observed"]["moods"] = {"orders": "fine"}
    newer["services"]["stock"]["mood"] = newer["observed"]["received"][0]["mood"] = "fine"
    of_another_kind = json.loads(json.dumps(newer))
    of_another_kind["observed"]["received"][0]["kind"] = "UNHEARD_OF"
    runs = [from_json(json.dumps(each)) for each in (of_another_kind, newer)]

    assert runs[0] is None
    assert past_of([*runs, ran(MONTHLY)], judged()).received == (PLACED,)


def test_observations_of_runs_of_several_names_are_merged() -> None:
    first = Past(received=(PLACED,), former_since={"stock": {}})
    second = Past(received=(MONTHLY, PLACED), former_since={"stock": {"mail": NIGHT}, "orders": {}})

    assert together(first, [second]) == Past(
        received=(MONTHLY, PLACED), former_since={"stock": {}, "orders": {}}
    )


def test_file_without_a_former_group_does_not_affect_it() -> None:
    """For example the file of an application, which runs under a name of its own."""
    unlisted = Past(former_since={"stock": {}})
    earlier = Past(former_since={"stock": {"mail": NIGHT}})
    later = Past(former_since={"stock": {"mail": NIGHT + timedelta(days=1)}})

    assert together(Past(), [unlisted, earlier]) == earlier
    assert together(Past(), [unlisted, later, earlier]) == later
    assert together(unlisted, [earlier]) == unlisted
