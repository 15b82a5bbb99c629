"""Mutants of half messages, and of the checks of their local transactions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Text, Update, bindparam

from shieldtx.domain.states import LocalOutcome, OutboxStatus
from shieldtx.half_messages.block import HalfMessageBlock
from shieldtx.ports.half_messages import CheckSchedule, NewHalfMessage
from shieldtx.store.barrier import SqlBarrier
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements import barrier as barrier_sql
from shieldtx.store.statements import half_messages as half_sql
from shieldtx.store.tables import Tables
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _committed_after_the_last_check(breaker: Breaker) -> None:
    def mutant(t: Tables, d: Dialect) -> Update:
        commit = half_sql.commit(t, d, OutboxStatus.HALF)
        return commit.values(last_error=bindparam("why", type_=Text()))

    half_sql.park = mutant


def _a_check_that_only_looks(breaker: Breaker) -> None:
    def mutant(self: SqlBarrier, event_id: UUID) -> LocalOutcome:
        with self._engine.connect() as connection:
            committed = connection.scalar(barrier_sql.found(self._tables, event_id))
        return LocalOutcome.COMMIT if committed else LocalOutcome.ROLLBACK

    SqlBarrier.outcome_of = mutant


def _nobody_is_immune(breaker: Breaker) -> None:
    parameters_of = half_sql.parameters_of

    def mutant(
        message: NewHalfMessage, d: Dialect, plan: CheckSchedule, *, shards: int
    ) -> dict[str, Any]:
        at_once = replace(message, immunity=timedelta(0))
        return parameters_of(at_once, d, plan, shards=shards)

    half_sql.parameters_of = mutant


def _every_commit_is_believed(breaker: Breaker) -> None:
    def mutant(self: HalfMessageBlock, outcome: LocalOutcome) -> dict[UUID, Any]:
        return {}

    HalfMessageBlock._barriers_to_query = mutant


OF_HALF_MESSAGES = named(
    "BANK_MUTANT",
    ("M23", "committed by default after the last check", _committed_after_the_last_check),
    ("M24", "a check reads the barrier and does not enter it", _a_check_that_only_looks),
    ("M25", "checked during immunity", _nobody_is_immune),
    ("M36", "a commit accepted although the barrier has none", _every_commit_is_believed),
)
