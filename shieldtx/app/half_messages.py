"""The wiring of half messages: declarations and calls of a service, and jobs of its relays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import cache, cached_property, partial
from typing import Any, TypeAlias, TypeVar, Unpack
from uuid import UUID

from sqlalchemy import Engine

from shieldtx._coroutines import wait_for
from shieldtx.domain.callables import check_callable, check_result, is_coroutine_function
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope, Event
from shieldtx.domain.states import LocalOutcome
from shieldtx.errors import ConfigurationError
from shieldtx.half_messages.block import HalfMessageBlock
from shieldtx.half_messages.check_back import CheckBack, Checker, Parking
from shieldtx.half_messages.messages import EventFields, HalfMessages
from shieldtx.half_messages.open_blocks import guard_open
from shieldtx.half_messages.transactional_decorator import (
    LocalTransactionSpec,
    transactional,
)
from shieldtx.outbox.causation import Handled
from shieldtx.outbox.publish_decorator import payload_type_of
from shieldtx.outbox.transaction import CallersTransaction
from shieldtx.ports.half_messages import CheckSchedule
from shieldtx.settings.settings import Settings
from shieldtx.store.barrier import SqlBarrier
from shieldtx.store.connections import accept_engine
from shieldtx.store.half_messages import SqlHalfMessageStore
from shieldtx.store.tables import tables

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=Callable[[Event], LocalOutcome | Awaitable[LocalOutcome]])


_BarrierDatabase: TypeAlias = tuple[Engine | None, str | None]
"""The database of a barrier (None: the service's own) and its schema."""


class HalfMessageWiring:
    """The half messages of a service."""

    def __init__(
        self,
        settings: Settings,
        *,
        event_types: EventTypeRegistry,
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
        self._event_types = event_types
        self._engine = engine
        self._checks_engine = checks_engine
        self._to_envelope = to_envelope
        self._after_commit = after_commit
        self._run_on_loop = run_on_loop
        self._checkers: dict[str, Checker] = {}
        self._barriers: dict[str, _BarrierDatabase] = {}
        """The database of each event type's barrier."""
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
        if self._barriers:
            self.messages.commit(event_ids)
        else:
            self.messages.end(event_ids, LocalOutcome.COMMIT)

    def rollback(self, *event_ids: UUID) -> None:
        """Discard half messages whose local transaction rolled back."""
        if self._barriers:
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

    # --- declarations of a service ----------------------------------------------------------------

    def transactional(
        self,
        transaction: LocalTransactionSpec,
        *,
        payload_type: Any,
        version: int | None,
        topic: str | None,
    ) -> Callable[[F], F]:
        """Return the decorator of a method that is a local transaction."""

        def decorate(function: F) -> F:
            decorated = transactional(lambda: self.messages, transaction)(function)
            named = transaction.payload

            def payload_of_argument() -> Any:
                return payload_type_of(function, named) if isinstance(named, str) else None

            self._event_types.declare_at_method(
                transaction.event_type,
                infer_payload=payload_of_argument,
                payload=payload_type,
                version=version,
                topic=topic,
            )
            return decorated

        return decorate

    def checks(self, event_type: str) -> Callable[[C], C]:
        """Return the decorator of a checker, which returns the outcomes of local transactions.

        The function is called as `function(event)`, in any relay of the service, and returns a
        LocalOutcome.
        """

        def decorate(function: C) -> C:
            what = f"check of event type {event_type!r}"
            check_callable(function, what=what, call="checker(event)", accepts_async=True)
            is_coroutine = is_coroutine_function(function)
            self._add(event_type, partial(self._call, function, is_coroutine=is_coroutine))
            return function

        return decorate

    def barrier(
        self, *event_types: str, engine: Engine | None = None, schema: str | None = None
    ) -> None:
        """Declare that a barrier in the local transactions' own database proves their outcome.

        The barrier is in the service's database by default. An `engine` names another database,
        where `shieldtx db upgrade` has created the tables in `schema`. Each local transaction of
        these types must call `guard`.
        """
        database = (engine, schema if engine is not None else self._settings.database_schema)
        if engine is not None:
            accept_engine(engine)
        for event_type in event_types:
            self._barriers[event_type] = database
            self._add(
                event_type,
                lambda envelope: self._checked_barrier_at(database).outcome_of(envelope.id),
            )

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
            for event_type, checker in sorted(self._checkers.items())
        ]

    def checks_due(self) -> Collection[str]:
        """Return the event types with a checker that have a half message due for a check."""
        return self._check_store.types_due(sorted(self._checkers))

    def parking(self) -> Parking:
        """Build the job that leaves half messages to an operator."""
        return Parking(store=self._check_store)

    def other_barriers(self) -> Sequence[tuple[Engine, str | None]]:
        """Return the databases and schemas of barriers outside of the service's own database."""
        found = {(engine, schema) for engine, schema in self._barriers.values() if engine}
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

    def _open_barrier(self, own: Callable[[], Engine], database: _BarrierDatabase) -> SqlBarrier:
        engine, schema = database
        return SqlBarrier(
            engine if engine is not None else own(),
            tables(schema),
            patience=self._settings.barrier_patience,
        )

    def _barrier_of(self, event_type: str) -> SqlBarrier | None:
        database = self._barriers.get(event_type)
        return None if database is None else self._barrier_at(database)

    def barrier_to_ask(self, event_type: str, outcome: LocalOutcome) -> SqlBarrier | None:
        """Return the barrier to query before an operator's decision about a half message.

        Without a known checker for the event type (the command line without `--app`), a rollback at
        least refuses later local transactions in the service's own database.
        """
        if event_type not in self._checkers and outcome is LocalOutcome.ROLLBACK:
            return self._barrier_at((None, self._settings.database_schema))
        return self._barrier_of(event_type)

    def _add(self, event_type: str, checker: Checker) -> None:
        if event_type in self._checkers:
            raise ConfigurationError(
                f"event type {event_type!r} has a second source of outcomes: keep one, a "
                "checker or the barrier"
            )
        self._checkers[event_type] = checker

    def _call(
        self, function: Callable[[Event], Any], envelope: Envelope, *, is_coroutine: bool
    ) -> LocalOutcome:
        event = envelope.opened(self._event_types.read(envelope))
        outcome: LocalOutcome
        if is_coroutine:
            outcome = self._run_on_loop(lambda: wait_for(function(event)))
        else:
            outcome = function(event)
        check_result(outcome, function)
        return outcome
