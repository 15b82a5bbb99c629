"""Tests of which rows an incremental run reads, and how the server finds them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.request import Selection
from spark.sources.incremental import read_of_inbox, read_of_outbox
from spark.sources.row_filters import EVERYTHING, MOST_LOOKUPS

WITH_A_PERSON = {OutboxStatus.FAILED, OutboxStatus.UNRESOLVED, InboxStatus.DEAD}


def read_of(service, table, *, or_ids=()):
    moved = Selection(moved_since={service.name: service.now() - timedelta(hours=1)})
    read, row = (read_of_outbox, "o") if table == "outbox" else (read_of_inbox, "i")
    condition = read(moved, service.name).or_ids(row, or_ids).condition
    return f"FROM shield_{table} {row} WHERE {condition}"


def ids_in(service, table):
    with service.engine.connect() as connection:
        return set(connection.scalars(text(f"SELECT event_id {read_of(service, table)}")))


def scans(plan):
    """Return the name of each scan in a plan, with the name of its index."""
    yield plan["Node Type"], plan.get("Index Name")
    for part in plan.get("Plans", ()):
        yield from scans(part)


@pytest.mark.parametrize("ids", [0, 3_000])
@pytest.mark.parametrize("table", ["outbox", "inbox"])
def test_what_has_moved_is_found_by_indexes(orders, table, ids):
    read = read_of(orders, table, or_ids={str(new_event_id()) for _ in range(ids)})
    with orders.engine.connect() as connection:
        # A sequential scan is the fastest way to a few rows: here the server avoids it where it
        # can.
        connection.execute(text("SET enable_seqscan = off"))
        (found,) = connection.scalars(text(f"EXPLAIN (FORMAT json) SELECT * {read}"))
    nodes, indexes = (set(each) for each in zip(*scans(found[0]["Plan"]), strict=True))
    assert "Seq Scan" not in nodes, json.dumps(found, indent=1)
    assert f"shield_{table}_settled_idx" in indexes
    assert (f"shield_{table}_pkey" in indexes) is bool(ids)
    # The server may also find a few rows by the index of all rollbacks.
    assert indexes & {
        "shield_outbox_error_idx",
        "shield_inbox_operator_idx",
        "shield_inbox_rollback_idx",
    }


@pytest.mark.parametrize("status", OutboxStatus)
def test_outbox_rows_at_rest_are_skipped_unless_dead_letters(orders, status):
    error = "no such topic" if status in WITH_A_PERSON else None
    old = [
        orders.write(status, age=300, last_error=error, waiting=waiting)
        for waiting in ((False,) if status in OUTBOX.settled else (False, True))
    ]
    new = orders.write(status, age=300, settled_age=30, last_error=error)
    is_left_out = status in OUTBOX.settled and status not in WITH_A_PERSON
    assert ids_in(orders, "outbox") == ({new} if is_left_out else {new, *old})


@pytest.mark.parametrize("status", InboxStatus)
def test_inbox_rows_at_rest_are_skipped_unless_dead_letters(orders, status):
    error = None if status in {InboxStatus.INIT, InboxStatus.PROCESSED} else "out of stock"
    kind = TxKind.ROLLBACK if status is InboxStatus.DEAD else TxKind.COMMIT
    there = {"group": "reserve", "source": "orders", "last_error": error, "kind": kind}
    old = orders.receive(new_event_id(), status, age=300, **there)
    new = orders.receive(new_event_id(), status, age=300, settled_age=30, **there)
    is_left_out = status in INBOX.settled and status not in WITH_A_PERSON
    assert ids_in(orders, "inbox") == ({new} if is_left_out else {new, old})


def test_events_named_by_id_are_read_once_with_moved_rows(orders):
    old, named = orders.write(age=300), orders.write(age=300)
    new = orders.write(age=5)

    with orders.engine.connect() as connection:
        read = read_of(orders, "outbox", or_ids={str(named), str(new)})
        found = list(connection.scalars(text(f"SELECT event_id {read}")))

    assert sorted(found) == sorted([named, new])
    assert old not in found


def test_too_many_ids_for_a_statement_cause_a_full_read():
    moved = read_of_outbox(Selection(moved_since={"orders": datetime.now(UTC)}), "orders")
    ids = {str(UUID(int=number)) for number in range(MOST_LOOKUPS + 1)}

    assert moved.or_ids("o", ids) is EVERYTHING
    assert moved.or_ids("o", set()) is moved
