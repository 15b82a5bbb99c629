"""Mutants of the connections to PostgreSQL."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from sqlalchemy import URL

from shieldtx.store import connections
from shieldtx.store.dialects import PostgresDialect
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _pools_are_shared_after_a_fork(breaker: Breaker) -> None:
    try_the_rested = connections._ping_idle_connection

    def mutant(engine: Any, connection: Any, entry: Any, proxy: Any) -> None:
        entry.info[connections._OPENED_BY] = os.getpid()
        try_the_rested(engine, connection, entry, proxy)

    connections._ping_idle_connection = mutant
    connections._forget_pool = lambda engine: None


def _own_sessions_are_serializable(breaker: Breaker) -> None:
    engine_arguments = PostgresDialect.engine_arguments
    session_arguments = PostgresDialect.session_arguments

    def of_engine(self: PostgresDialect, url: URL, *, pooled: bool) -> dict[str, Any]:
        return engine_arguments(self, url, pooled=pooled) | {"isolation_level": "SERIALIZABLE"}

    def of_session(self: PostgresDialect, url: URL, idle: timedelta) -> dict[str, Any]:
        options = session_arguments(self, url, idle)["options"]
        return {"options": options.replace(r"read\ committed", "serializable")}

    PostgresDialect.engine_arguments = of_engine
    PostgresDialect.session_arguments = of_session


def _statements_are_prepared_behind_a_pooler(breaker: Breaker) -> None:
    engine_arguments = PostgresDialect.engine_arguments

    def mutant(self: PostgresDialect, url: URL, *, pooled: bool) -> dict[str, Any]:
        arguments = engine_arguments(self, url, pooled=pooled)
        own = {k: v for k, v in arguments["connect_args"].items() if k != "prepare_threshold"}
        return arguments | {"connect_args": own}

    PostgresDialect.engine_arguments = mutant


OF_CONNECTIONS = named(
    "BANK_MUTANT",
    ("M42", "forked processes share a pool of connections", _pools_are_shared_after_a_fork),
    ("M43", "claims in serializable transactions", _own_sessions_are_serializable),
    ("M54", "prepared statements through a pooler", _statements_are_prepared_behind_a_pooler),
)
