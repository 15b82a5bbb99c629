"""The methods of ShieldTx for half messages and their local transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, Unpack
from uuid import UUID

from sqlalchemy import Engine

from shieldtx.app.half_message_declarations import HalfMessageDeclarations
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.domain.events import NO_HEADERS, Event
from shieldtx.domain.states import LocalOutcome, Operation
from shieldtx.half_messages.block import HalfMessageBlock
from shieldtx.half_messages.messages import EventFields
from shieldtx.half_messages.transactional_decorator import Argument, LocalTransactionSpec
from shieldtx.outbox.publish_decorator import PayloadField
from shieldtx.outbox.transaction import CallersTransaction

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=Callable[[Event], LocalOutcome | Awaitable[LocalOutcome]])


class HalfMessageMethods(ABC):
    """A part of ShieldTx, which sets the attribute: applications call these methods on it."""

    _half_message_declarations: HalfMessageDeclarations

    @property
    @abstractmethod
    def half_messages(self) -> HalfMessageWiring:
        """The half messages of a service: the methods `half`, `half_prepare`, `guard` call it."""

    def half(
        self,
        event_type: str,
        payload: Any = None,
        *,
        rollback_on: tuple[type[BaseException], ...] = (),
        **fields: Unpack[EventFields],
    ) -> HalfMessageBlock:
        """Return a block around a local transaction outside of the outbox's own database.

        `with shield.half("orders.placed", order, key=order.id) as tx:` prepares the message first,
        and does not enter the block if the preparation fails. The end of the block commits the
        message. An error of `rollback_on` discards the message, and after any other error a check
        finds the outcome.
        """
        return self.half_messages.half(event_type, payload, rollback_on=rollback_on, **fields)

    def half_prepare(
        self, event_type: str, payload: Any = None, **fields: Unpack[EventFields]
    ) -> UUID:
        """Prepare a half message and return its id, for `half_commit` or `half_rollback`.

        Raises EventRefused, UnknownEventType, and errors of the database: after an error, do not
        run the local transaction.
        """
        return self.half_messages.prepare(event_type, payload, **fields)

    def half_commit(self, *event_ids: UUID) -> None:
        """Send half messages whose local transaction committed.

        Raises IllegalTransition for messages that were rolled back, wait for an operator or do not
        exist; TransactionRefused where a declared barrier does not confirm the commit.
        """
        self.half_messages.commit(*event_ids)

    def half_rollback(self, *event_ids: UUID) -> None:
        """Discard half messages whose local transaction rolled back.

        Raises IllegalTransition for messages that were committed, wait for an operator or do not
        exist; TransactionRefused where a declared barrier does not confirm the rollback.
        """
        self.half_messages.rollback(*event_ids)

    def guard(self, transaction: CallersTransaction, *event_ids: UUID) -> None:
        """Guard a local transaction with the half messages of the block around this call.

        A decorated method uses the messages of all its decorators, and not those of its callers.
        Outside of blocks, pass the `event_ids` that `half_prepare` returned. Raises
        TransactionRefused in a nested block, where the block's own `guard` must be called.
        """
        self.half_messages.guard(transaction, *event_ids)

    def transactional(
        self,
        event_type: str,
        *,
        payload: Argument,
        key: PayloadField = None,
        biz_key: PayloadField = None,
        payload_type: Any = None,
        version: int | None = None,
        topic: str | None = None,
        operation: Operation = Operation.INSERT,
        headers: Mapping[str, str] = NO_HEADERS,
        delay: timedelta | None = None,
        immunity: timedelta | None = None,
        rollback_on: tuple[type[BaseException], ...] = (),
    ) -> Callable[[F], F]:
        """Return a decorator that prepares a half message before the method, a local transaction.

        `payload` is the name of the argument to send, or a function of all arguments by name. `key`
        and `biz_key` are names of its fields, or functions of it. `delay` counts from the commit,
        and `immunity` is the time until the first check. The method ends its transaction itself.
        Its return commits the message, unless it returns another LocalOutcome; after an exception,
        a check finds the outcome, except for `rollback_on`.
        """
        transaction = LocalTransactionSpec(
            event_type=event_type,
            payload=payload,
            key=key,
            biz_key=biz_key,
            operation=operation,
            headers=headers,
            delay=delay,
            immunity=immunity,
            rollback_on=rollback_on,
        )
        return self._half_message_declarations.transactional(
            transaction, payload_type=payload_type, version=version, topic=topic
        )

    def checks(self, event_type: str) -> Callable[[C], C]:
        """Return a decorator that declares the checker of an event type's local transactions.

        The function is called as `function(event)`, in any relay of the service, if the outcome of
        a half message is unknown. It returns a LocalOutcome. Raises ConfigurationError for a second
        checker.
        """
        return self._half_message_declarations.checks(event_type)

    def barrier(
        self, *event_types: str, engine: Engine | None = None, schema: str | None = None
    ) -> None:
        """Declare that a barrier in the local transactions' own database proves their outcome.

        The barrier is in the service's database by default. An `engine` names another database,
        where `shieldtx db upgrade` has created the tables in `schema`. Each local transaction of
        these types must call `guard`. Raises ConfigurationError for a type that has a checker or a
        barrier.
        """
        self._half_message_declarations.barrier(*event_types, engine=engine, schema=schema)
