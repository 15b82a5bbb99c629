"""Tests of how the server finds waiting inbox rows that are not judged: not by a full scan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import text

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.reconcile.request import ReconcileRequest, Selection
from shieldtx.reconcile.window import Clock
from spark.sources.jdbc import Databases
from spark.sources.received_from_others import waiting_from_others

DAY = 24 * 60
SETTLED = 20_000
_PLANS: Final[list[Any]] = []


class Explained(Databases):
    """Asks the server only for the plan of a query."""

    def rows(self, service: Any, query: str, **names: str) -> Any:
        ((plan,),) = super().rows(service, f"EXPLAIN (FORMAT JSON) {query}", **names)
        _PLANS.append((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
        return []


def asked(service: Any, of: type[Databases], *, is_further: bool) -> list[str]:
    """Query the waiting rows in the inbox of a service."""
    now = service.now()
    since = {service.name: now - timedelta(hours=1)} if is_further else {}
    databases = of(
        spark=None,  # no row comes by Spark
        request=ReconcileRequest(
            services=(service.database(),),
            folder=Path("unused"),
            selection=Selection(moved_since=since),
        ),
        lately=now - timedelta(minutes=30),
    )
    clocks = {service.name: Clock(service=service.name, now=now)}
    return list(waiting_from_others(databases, clocks))


def scans(plan: Any) -> Iterator[str]:
    """Yield the name of each index of a plan, and the type of each node without one."""
    yield plan.get("Index Name", plan["Node Type"])
    for part in plan.get("Plans", ()):
        yield from scans(part)


def settled_long_ago(service: Any) -> None:
    """Fill an inbox with settled events of its services and of others."""
    of = {"group": "audit", "source": "orders", "age": DAY}
    event_id = service.receive(new_event_id(), **of)
    columns = [c.name for c in service.tables.inbox.columns if c.name not in {"seq", "event_id"}]
    changed = {"source": "CASE WHEN n % 2 = 0 THEN 'orders' ELSE 'crm' END"}
    values = ", ".join(changed.get(name, name) for name in columns)
    with service.engine.begin() as connection:
        connection.execute(
            text(
                f"INSERT INTO {service.tables.inbox} (event_id, {', '.join(columns)}) "
                f"SELECT gen_random_uuid(), {values} FROM {service.tables.inbox}, "
                "generate_series(1, :settled) n WHERE event_id = :event_id"
            ),
            {"settled": SETTLED, "event_id": event_id},
        )
        connection.execute(text(f"ANALYZE {service.tables.inbox}"))


@pytest.mark.parametrize("is_further", [True, False])
def test_what_waits_is_found_by_indexes(orders, is_further):
    settled_long_ago(orders)
    left = {"group": "undo", "kind": TxKind.ROLLBACK, "causation_source": "crm", "age": DAY}
    for status, error in ((InboxStatus.DEAD, "x"), (InboxStatus.INIT, None)):
        orders.receive(new_event_id(), status, source="crm", last_error=error, **left)
    _PLANS.clear()

    told = asked(orders, Databases, is_further=is_further)
    asked(orders, Explained, is_further=is_further)

    assert [each.split(" are ")[1][:4] for each in told] == ["DEAD", "INIT"]
    dead, stuck = ({*scans(plan)} for plan in _PLANS)
    assert "Seq Scan" not in dead | stuck
    # A run over everything may find a row without an error among all rollbacks.
    assert dead & {"shield_inbox_operator_idx", "shield_inbox_rollback_idx"}
    assert stuck & {"shield_inbox_line_idx", "shield_inbox_key_idx"}
