"""Tests of when rows have moved, and of the plan by which a real PostgreSQL finds out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.reconcile.request import ReconcileRequest
from spark.sources.moved_at import DOWNSTREAM_MOVED_AT, UPSTREAM_MOVED_AT
from spark.sources.row_filters import LATEST, literal_time
from spark.sources.server_checks import Servers
from tests.spark.planting import Service, inbox_row, outbox_row

QUERIES = {
    "outbox": f"SELECT o.event_id, {UPSTREAM_MOVED_AT} > now() - interval '1 minute' AS moved "
    "FROM {outbox} o WHERE o.settled_at IS NULL",
    "inbox": f"SELECT i.event_id, {DOWNSTREAM_MOVED_AT} > now() - interval '1 minute' AS moved "
    "FROM {inbox} i WHERE i.settled_at IS NULL",
}
SETTLED = 5_000
WAITING = 500
KEEPS = {"Aggregate", "Hash", "Sort", "Incremental Sort", "Materialize", "Memoize", "CTE Scan"}


@pytest.fixture(params=QUERIES)
def side(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def asked(service: Service, side: str, *, explain: str = "") -> list[Any]:
    """Query in a session like the job's, with rows of the last half hour as recently settled."""
    database = service.database()
    lately = literal_time(service.now() - timedelta(minutes=30))
    servers = Servers(request=ReconcileRequest(services=(database,), folder=Path("unused")))
    query = explain + QUERIES[side]
    return list(servers.rows(database, query, latest=LATEST, lately=lately))


def rows(service: Service, side: str, numbers: range, **settled: float) -> None:
    """Insert a row for each key: settled the given number of minutes ago, or waiting."""
    now = service.now()
    if side == "outbox":
        status = OutboxStatus.PROCESSED if settled else OutboxStatus.INIT
        made = (
            outbox_row(service.name, new_event_id(), status, now=now, age=60, **settled)
            for _ in numbers
        )
    else:
        received = InboxStatus.PROCESSED if settled else InboxStatus.INIT
        of = {"source": "orders", "group": "reserve", "age": 60}
        made = (
            inbox_row(event_id=new_event_id(), status=received, now=now, **of, **settled)
            for _ in numbers
        )
    keyed = [{**row, "key": f"k{n}"} for n, row in zip(numbers, made, strict=True)]
    service.insert(**{side: keyed})


def nodes(service: Service, side: str) -> list[Mapping[str, Any]]:
    """Run the query; return the nodes of its plan with their statistics."""
    ((plan,),) = asked(service, side, explain="EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) ")
    found = json.loads(plan) if isinstance(plan, str) else plan
    return list(_below(found[0]["Plan"]))


def _below(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for each in node.get("Plans", ()):
        yield from _below(each)


def reads_of_settled(found: list[Mapping[str, Any]]) -> list[int]:
    """Return how often each node read the recently settled rows."""
    conditions = ("Filter", "Recheck Cond")
    return [
        node["Actual Loops"]
        for node in found
        if any("settled_at >=" in node.get(condition, "") for condition in conditions)
    ]


def analyze(service: Service, side: str) -> None:
    with service.engine.begin() as connection:
        connection.execute(text(f"ANALYZE {service.tables.outbox.name.replace('outbox', side)}"))


def test_what_settled_lately_is_kept_only_for_keys_that_wait(orders, side):
    """They can be millions, which the planner does not expect after an outage of the relays."""
    rows(orders, side, range(WAITING), settled_age=600)
    rows(orders, side, range(WAITING))
    analyze(orders, side)
    rows(orders, side, range(SETTLED), settled_age=10)
    found = nodes(orders, side)
    assert reads_of_settled(found) == [1]
    assert max(n["Actual Rows"] for n in found if n["Node Type"] in KEEPS) == WAITING


def test_recently_settled_rows_are_read_once_with_any_estimate(orders, side):
    """The planner expects no such rows where all of them were written after the last ANALYZE."""
    rows(orders, side, range(SETTLED), settled_age=600)
    analyze(orders, side)
    rows(orders, side, range(WAITING), settled_age=10)
    rows(orders, side, range(WAITING))
    found = nodes(orders, side)
    assert reads_of_settled(found) == [1]
    assert "Nested Loop" not in {node["Node Type"] for node in found}


def test_what_settled_lately_is_not_read_where_no_row_waits(orders, side):
    rows(orders, side, range(100), settled_age=10)
    orders.write(OutboxStatus.PROCESSING, key="k1")
    orders.receive(
        new_event_id(), InboxStatus.PROCESSING, group="reserve", source="orders", key="k1"
    )
    assert reads_of_settled(nodes(orders, side)) == [0]


def test_waiting_outbox_row_moves_when_its_predecessor_settles(orders):
    init = OutboxStatus.INIT
    before = orders.write(init, key="k")
    orders.write(key="k", settled_age=10)
    orders.write(key="k", settled_age=20)
    orders.write(key="long ago", settled_age=40)
    orders.write(settled_age=10)
    behind = [orders.write(init, key="k") for _ in range(2)]
    blocked = orders.write(init, key="k", holds_key=True)
    others = [
        before,
        orders.write(init, key="long ago"),
        orders.write(init, key="k", shard=1),
        orders.write(init, key="k", waiting=True),
        orders.write(init),
        orders.write(OutboxStatus.PROCESSING, key="k"),
    ]
    expected = {**dict.fromkeys([*behind, blocked], True), **dict.fromkeys(others, False)}
    assert {row.event_id: row.moved for row in asked(orders, "outbox")} == expected


def test_waiting_inbox_row_moves_when_its_predecessor_settles(orders):
    def receive(status=InboxStatus.INIT, **columns):
        given = {"group": "reserve", "source": "orders", "key": "k", **columns}
        return orders.receive(new_event_id(), status, **given)

    before = receive()
    done = InboxStatus.PROCESSED
    receive(done, settled_age=10)
    receive(done, settled_age=20)
    receive(done, settled_age=40, key="long ago")
    receive(done, settled_age=10, key=None)
    behind = [receive() for _ in range(2)]
    others = [
        before,
        receive(key="long ago"),
        receive(topic="other"),
        receive(group="mail"),
        receive(key=None),
        receive(InboxStatus.PROCESSING),
    ]
    expected = {**dict.fromkeys(behind, True), **dict.fromkeys(others, False)}
    assert {row.event_id: row.moved for row in asked(orders, "inbox")} == expected
