"""Mutants of consumers, of their compensations, and of the rows that the purge keeps for these."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Select, false, true
from sqlalchemy.orm import Session

from shieldtx.consumer.fetcher import BlockingFetcher
from shieldtx.domain import reasons
from shieldtx.ports.broker import BATCH_BYTES
from shieldtx.ports.consumer import FetchedBatch
from shieldtx.ports.inbox import Attempt, Original
from shieldtx.store.guarded_session import guarded_session, lock_rows, settle
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.statements import inbox as inbox_sql
from shieldtx.store.statements import inbox_unfinished
from shieldtx.store.statements import retention as purge_sql
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _undecoded_records_are_skipped(breaker: Breaker) -> None:
    def mutant(
        self: BlockingFetcher, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES
    ) -> FetchedBatch:
        polled = self._subscriber.poll(timeout=timeout, limit=limit, limit_bytes=limit_bytes)
        return self._sorted(tuple(polled))

    BlockingFetcher.fetch = mutant


def _all_types_are_due(breaker: Breaker) -> None:
    due, is_handled = inbox_unfinished.due, inbox_unfinished._is_handled

    def mutant(*given: Any) -> Select[Any]:
        inbox_unfinished._is_handled = lambda i, d: true()
        try:
            return due(*given)
        finally:
            inbox_unfinished._is_handled = is_handled

    inbox_unfinished.due = mutant


def _nothing_is_needed(breaker: Breaker) -> None:
    purge_sql.is_needed_in_outbox = purge_sql.is_needed_in_inbox = lambda t: false()


def _own_events_bear_the_name_of_now(breaker: Breaker) -> None:
    original = SqlInboxStore.original
    name = os.environ["SHIELDTX_SOURCE"]

    def mutant(
        self: SqlInboxStore, session: Session, attempt: Attempt, *, written_here: bool
    ) -> Original | None:
        if written_here and attempt.envelope.causation_source not in {name, None}:
            return None
        return original(self, session, attempt, written_here=written_here)

    SqlInboxStore.original = mutant


def _a_handlers_commit_settles(breaker: Breaker) -> None:
    @contextmanager
    def mutant(self: SqlInboxStore, attempt: Attempt) -> Iterator[Session]:
        e = attempt.envelope
        parameters = inbox_sql.attempt_parameters(attempt.group, e.id, e.source, attempt.token)
        with guarded_session(self._engine, "handler") as (session, connection):
            settle(
                session,
                lock_rows(connection, self._lock_row, parameters),
                self._processed,
                parameters,
            )
            yield session

    SqlInboxStore.effect = mutant


def _errors_are_quoted_whole(breaker: Breaker) -> None:
    reasons._summary = lambda error: None


OF_CONSUMERS = named(
    "BANK_MUTANT",
    ("M38", "an error while decoding skips the batch", _undecoded_records_are_skipped),
    ("M39", "rows without a handler fill the batch of due ones", _all_types_are_due),
    ("M40", "a purge deletes what a rollback still needs", _nothing_is_needed),
    ("M41", "whose event it is comes from a setting", _own_events_bear_the_name_of_now),
    ("M48", "an event is settled by a commit of its handler", _a_handlers_commit_settles),
    ("M52", "reasons quote rows and payloads from errors", _errors_are_quoted_whole),
)
