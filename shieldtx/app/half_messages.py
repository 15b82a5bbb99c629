"""The wiring of half messages: calls of a service, and jobs of its relays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, cached_property, partial
from operator import itemgetter
from typing import Any, Unpack
from uuid import UUID

from sqlalchemy import Engine

from shieldtx._coroutines import wait_for
from shieldtx.app.half_message_declarations import (
    OWN_DATABASE,
    BarrierDatabase,
    DeclaredChecker,
    HalfMessageDeclarations,
)
from shieldtx.domain.callables import check_result
from shieldtx.domain.events import Envelope, Event
from shieldtx.domain.states import LocalOutcome
from shieldtx.half_messages.block import HalfMessageBlock
from shieldtx.half_messages.check_back import CheckBack, Checker, Parking
from shieldtx.half_messages.messages import EventFields, HalfMessages
from shieldtx.half_messages.open_blocks import guard_open
from shieldtx.outbox.causation import Handled
from shieldtx.outbox.transaction import CallersTransaction
from shieldtx.ports.half_messages import CheckSchedule
from shieldtx.settings.settings import Settings
from shieldtx.store.barrier import SqlBarrier
from shieldtx.store.half_messages import SqlHalfMessageStore
from shieldtx.store.tables import tables


class HalfMessageWiring:
    """The half messages of a service."""

    def __init__(
        self,
        settings: Settings,
        *,
        declared: HalfMessageDeclarations,
        engine: Callable[[], Engine],
        checks_engine: Callable[[], Engine],
        to_envelope: Callable[[Event, Handled | None], Envelope],
        after_commit: Callable[[], None],
        run_on_loop: Callable[[Callable[[], Any]], Any],
    ) -> None:
        """Connect to nothing yet.

        `engine` opens the service's own database, `checks_engine` does so for a relay's checks;
        `run_on_loop` runs a call that waits for a coroutine.
        """
        self._settings = settings
        self._declared = declared
        self._engine = engine
        self._checks_engine = checks_engine
        self._to_envelope = to_envelope
        self._after_commit = after_commit
        self._run_on_loop = run_on_loop
        self._barrier_at = cache(partial(self._open_barrier, engine))
        self._checked_barrier_at = cache(partial(self._open_barrier, checks_engine))

    # --- calls of a service -----------------------------------------------------------------------

    def half(
        self,
        event_type: str,
        payload: Any = None,
        *,
        rollback_on: tuple[type[BaseException], ...] = (),
        **fields: Unpack[EventFields],
    ) -> HalfMessageBlock:
        """Return a block around a local transaction outside of the outbox's own database.

        The message is prepared first; see `ShieldTx.half` and HalfMessageBlock.
        """
        return HalfMessageBlock(
            self.messages, event_type, payload, rollback_on=rollback_on, **fields
        )

    def prepare(self, event_type: str, payload: Any = None, **fields: Unpack[EventFields]) -> UUID:
        """Prepare a half message and return its id, for a later commit or rollback."""
        return self.messages.prepare(event_type, payload, **fields)

    def commit(self, *event_ids: UUID) -> None:
        """Send half messages whose local transaction committed."""
        if self._declared.barriers:
            self.messages.commit(event_ids)
        else:
            self.messages.end(event_ids, LocalOutcome.COMMIT)

    def rollback(self, *event_ids: UUID) -> None:
        """Discard half messages whose local transaction rolled back."""
        if self._declared.barriers:
            self.messages.rollback(event_ids)
        else:
            self.messages.end(event_ids, LocalOutcome.ROLLBACK)

    def guard(self, transaction: CallersTransaction, *event_ids: UUID) -> None:
        """Guard a local transaction with the half messages of the blocks around this call.

        Outside of blocks, pass the `event_ids` that `half_prepare` returned.
        """
        if event_ids:
            self.messages.guard(transaction, event_ids)
        else:
            guard_open(transaction)

    # --- workers ----------------------------------------------------------------------------------

    @cached_property
    def messages(self) -> HalfMessages:
        """The service that prepares half messages and records their outcomes."""
        return HalfMessages(
            store=self._store,
            barrier_of=self._barrier_of,
            to_envelope=self._to_envelope,
            after_commit=self._after_commit,
            barrier_retention=self._settings.retention_barrier,
        )

    def check_backs(self, *, stopping: Callable[[], bool] = lambda: False) -> Sequence[CheckBack]:
        """Build the check-back of each event type that has a checker or a barrier here."""
        s = self._settings
        # A pass is no longer than the watchdog allows.
        timeout = min(s.half_check_timeout, s.watchdog / 4)
        budget = min(s.half_check_interval - timeout, s.watchdog / 2)
        return [
            CheckBack(
                event_type=event_type,
                store=self._check_store,
                checker=checker,
                timeout=timeout,
                budget=budget,
                threads=s.half_check_threads,
                after_commit=self._after_commit,
                stopping=stopping,
            )
            for event_type, checker in self._checkers()
        ]

    def checks_due(self) -> Collection[str]:
        """Return the event types with a checker that have a half message due for a check."""
        return self._check_store.types_due(sorted(self._declared.outcomes))

    def parking(self) -> Parking:
        """Build the job that leaves half messages to an operator."""
        return Parking(store=self._check_store)

    def other_barriers(self) -> Sequence[tuple[Engine, str | None]]:
        """Return the databases and schemas of barriers outside of the service's own database."""
        found = {(engine, schema) for engine, schema in self._declared.barriers.values() if engine}
        return sorted(found, key=str)

    @cached_property
    def _store(self) -> SqlHalfMessageStore:
        return self._open_store(self._engine())

    @cached_property
    def _check_store(self) -> SqlHalfMessageStore:
        return self._open_store(self._checks_engine())

    def _open_store(self, engine: Engine) -> SqlHalfMessageStore:
        s = self._settings
        return SqlHalfMessageStore(
            engine,
            tables(s.database_schema),
            shards=s.shards,
            plan=CheckSchedule(
                immunity=s.half_immunity,
                interval=s.half_check_interval,
                growth=s.half_check_growth,
                longest=max(s.half_check_longest, s.half_check_interval),
                most=s.half_checks,
                max_age=s.half_max_age,
            ),
        )

    def _open_barrier(self, own: Callable[[], Engine], database: BarrierDatabase) -> SqlBarrier:
        engine, schema = database
        return SqlBarrier(
            engine if engine is not None else own(),
            tables(schema if engine is not None else self._settings.database_schema),
            patience=self._settings.barrier_patience,
        )

    def _barrier_of(self, event_type: str) -> SqlBarrier | None:
        database = self._declared.barriers.get(event_type)
        return None if database is None else self._barrier_at(database)

    def barrier_to_ask(self, event_type: str, outcome: LocalOutcome) -> SqlBarrier | None:
        """Return the barrier to query before an operator's decision about a half message.

        Without a known checker for the event type (the command line without `--app`), a rollback at
        least refuses later local transactions in the service's own database.
        """
        if event_type not in self._declared.outcomes and outcome is LocalOutcome.ROLLBACK:
            return self._barrier_at(OWN_DATABASE)
        return self._barrier_of(event_type)

    def _checkers(self) -> Iterator[tuple[str, Checker]]:
        for event_type, outcomes in sorted(self._declared.outcomes.items(), key=itemgetter(0)):
            if isinstance(outcomes, DeclaredChecker):
                yield event_type, partial(self._check, outcomes)
            else:
                yield event_type, partial(self._outcome_at, outcomes)

    def _outcome_at(self, database: BarrierDatabase, envelope: Envelope) -> LocalOutcome:
        return self._checked_barrier_at(database).outcome_of(envelope.id)

    def _check(self, checker: DeclaredChecker, envelope: Envelope) -> LocalOutcome:
        event = envelope.opened(self._declared.event_types.read(envelope))
        outcome: LocalOutcome
        if checker.is_coroutine:
            outcome = self._run_on_loop(lambda: wait_for(checker.function(event)))
        else:
            outcome = checker.function(event)
        check_result(outcome, checker.function)
        return outcome
