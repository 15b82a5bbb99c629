"""The mutated modules, and the tests that have to detect the mutants."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from typing import Final

from shieldtx.store import statements

_VIEWS: Final = {"backlog", "status", "trace", "reconciliation_runs", "locks", "audit"}
"""Statements that show rows to an operator, or are part of a migration."""

PROTOCOL: Final = (
    "store.relay_store",
    "store.blocked",
    "store.fence",
    "store.low_water_mark",
    "store.halving",
    "store.shard_leases",
    "store.dead_owners",
    "store.inbox_receiver",
    "store.inbox_store",
    "store.savepoints",
    "store.batch_savepoint",
    "store.pauses",
    "store.compensation",
    "store.retention",
    "store.barrier",
    "store.table_location",
    "store.guarded_session",
    "store.outbox_writer",
    "store.transaction_marks",
    "store.as_found",
    "store.residual_state",
    "store.half_messages",
    "relay.relay",
    "relay.in_flight",
    "relay.outcome",
    "relay.permanent_failure",
    "relay.sender",
    "relay.throttle",
    "consumer.consumer",
    "consumer.lanes",
    "consumer.failures",
    "consumer.fetcher",
    "consumer.foreign_topic",
    "consumer.due_events",
    "consumer.event_processor",
    "consumer.breaker",
    "consumer.blocked_attempts",
    "consumer.failure_runs",
    "consumer.own_pauses",
    "consumer.probes",
    "consumer.batch_executor",
    "consumer.batch_calls",
    "consumer.failure_rates",
    "consumer.shared_transaction",
    "consumer.handler_caller",
    "consumer.interception",
    "consumer.attempt_recorder",
    "consumer.compensation",
    "half_messages.barrier_binding",
    "half_messages.barrier_entry",
    "half_messages.barrier_events",
    "half_messages.barrier_check",
    "half_messages.block",
    "half_messages.handled_event",
    "half_messages.open_blocks",
    "outbox.outbox",
    "outbox.causation",
    "outbox.session_buffer",
    "outbox.session_binding",
    "outbox.session_events",
    "outbox.several_commits",
    "outbox.transaction",
    "outbox.transaction_watch",
)
"""Claim, settle, receive, attempt, compensation, purge, barrier and sessions."""

GENERAL: Final = ("tests/contract/store", "tests/verification/simulation")
"""Tests that hold for every implementation of a port, or search by themselves."""
TESTS: Final = (
    *GENERAL,
    "tests/integration/outbox",
    "tests/integration/store",
    "tests/integration/relay",
    "tests/integration/consumer",
    "tests/integration/half_messages",
    "tests/integration/hooks",
    "tests/integration/reconcile",
    "tests/migrations",
    "tests/unit/relay",
    "tests/unit/consumer",
    "tests/unit/store",
    "tests/unit/outbox",
    "tests/unit/half_messages",
)

LEFT_OUT: Final = ("tests/unit/store/test_sql.py",)
"""Tests that compare the text of each statement: they detect every change, harmless ones too."""

EVERY: Final = 3
"""One of this many mutants of a module is tried, unless `--every` is given."""


def modules(only: Sequence[str] = ()) -> list[str]:
    """Return the modules that are mutated, or those among them whose names begin so."""
    of_statements = [m.name for m in pkgutil.iter_modules(statements.__path__)]
    found = [f"store.statements.{name}" for name in of_statements if name not in _VIEWS]
    found += PROTOCOL
    chosen = [name for name in found if not only or name.startswith(tuple(only))]
    return [f"shieldtx.{name}" for name in chosen]
