"""The two banks: transfers leave one as events, and the other credits or refuses them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope, Event
from shieldtx.domain.payloads import payload_type
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.schema_versions import Upcasters, dataschema_of
from shieldtx.errors import Refused
from tests.support.handler_styles import awaited
from tests.verification.simulation.database import EPOCH, Database, Entry, Transaction

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

TYPE = "transfer"
TOPIC = "transfers"
REMOVED_TYPE = "advice"
"""A type of which an earlier release received events; its handler was removed since."""
VERSION = 2
"""The version of a payload that the services read; events of version 1 have no schema."""
_PAYLOAD = payload_type(None, of=TYPE)
HANDLER_LEASE = timedelta(seconds=5)


class Failure(Exception):
    """The failure of one call of a handler."""

    def __init__(self, what: str, transfer: Transfer) -> None:
        super().__init__(f"{what} {transfer.number}")
        self.hides_its_work = transfer.number % 2 == 0
        """Whether the call returns an object whose code has not run, instead of raising."""


class Defect(Exception):
    """The failure of every call of a handler, until a release repairs it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """Money on its way from the upstream bank to the downstream bank."""

    number: int
    key: str | None
    amount: int
    is_committed: bool
    """Whether the business transaction wants to commit."""
    delay: float
    """Seconds by which the event is delayed on purpose."""
    failures: int
    """How many attempts at the credit fail."""
    is_refused: bool
    """Whether the downstream bank refuses it."""
    is_fraud: bool
    """Whether the other group of the downstream service refuses it."""
    refund_failures: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """The knowledge of the upstream bank's client about a transfer."""

    transfer: Transfer
    event_id: UUID


class Bank:
    """The effects of handlers on the ledgers; each line belongs to the handler's transaction."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tries: Counter[tuple[str, int]] = Counter()

    def send(
        self,
        session: Transaction,
        transfer: Transfer,
        event_id: UUID,
        shards: Callable[[], int],
    ) -> None:
        """Take the money from the sender, and write the event."""
        _enter(session, "debit", transfer)
        envelope = envelope_of(transfer, event_id)
        database = session.database
        database.insert_outbox(session, envelope, delay=transfer.delay, shards=shards())

    def debit(self, session: Transaction, transfer: Transfer, event_id: UUID) -> None:
        """Take the money from the sender, whose event is an already stored half message."""
        _enter(session, "debit", transfer)
        database, row = session.database, session.database.outbox[event_id]
        session.write(lambda: database.written.update({event_id: row}))

    def credit(self, session: Transaction, event: Event) -> None:
        transfer = self._transfer(event.payload)
        if self._world.has_defect():
            self._world.may_die_as_a_probe()
            raise Defect(f"credit {transfer.number}")
        self._try("credit", transfer, transfer.failures)
        _enter(session, "credit", transfer)
        self._world.visit_running("handler", answered=True)
        if transfer.is_refused:
            # Only a rollback removes what is written already.
            raise Refused("no such account")

    def examine(self, _: Transaction, event: Event) -> None:
        transfer = self._transfer(event.payload)
        self._try("examine", transfer, 0)
        if transfer.is_fraud:
            raise Refused("looks like fraud")

    def take_back(self, session: Transaction, event: Event) -> None:
        transfer = self._transfer(event.payload)
        self._try("take back", transfer, transfer.refund_failures)
        _enter(session, "take back", transfer)
        self._world.visit_running("handler", answered=True)

    def refund(self, session: Transaction, event: Event) -> None:
        transfer = self._transfer(event.payload)
        self._try("refund", transfer, transfer.refund_failures)
        _enter(session, "refund", transfer)
        self._world.visit_running("handler", answered=True)

    def file(self, session: Transaction, event: Event) -> None:
        entry = Entry("file", event.payload["number"], 0)
        session.write(lambda: session.database.ledger.append(entry))

    def undo(self, session: Transaction, envelope: Envelope) -> None:
        """Return the money for an event that will never be delivered."""
        transfer = self._transfer(_UPCASTERS.read(_PAYLOAD, envelope, VERSION))
        self._try("undo", transfer, transfer.refund_failures)
        _enter(session, "undo", transfer)
        self._world.visit_running("handler", answered=True)

    def _transfer(self, payload: Any) -> Transfer:
        return self._world.transfers[payload["serial"]]

    def _try(self, what: str, transfer: Transfer, failures: int) -> None:
        self._world.visit_running("handler", answered=False)
        self._tries[what, transfer.number] += 1
        if self._tries[what, transfer.number] <= failures:
            raise Failure(what, transfer)


def envelope_of(transfer: Transfer, event_id: UUID) -> Envelope:
    """Return the event of a transfer; an earlier release has written every third."""
    is_old = transfer.number % 3 == 0
    return Envelope(
        id=event_id,
        type=TYPE,
        source="A",
        topic=TOPIC,
        payload=json.dumps({"number" if is_old else "serial": transfer.number}),
        time=EPOCH,
        key=transfer.key,
        biz_key=str(transfer.number),
        dataschema=None if is_old else dataschema_of(TYPE, VERSION),
    )


def _enter(session: Transaction, what: str, transfer: Transfer) -> None:
    entry = Entry(what, transfer.number, transfer.amount)
    session.write(lambda: session.database.ledger.append(entry))


def _handler(name: str) -> Any:
    def handle(session: Any, event: Event) -> Iterator[None] | None:
        database: Database = session.database
        try:
            getattr(database.business, name)(session, event)
        except Failure as failure:
            if not failure.hides_its_work:
                raise
            return _not_run()
        return None

    return handle


def _not_run() -> Iterator[None]:
    """Return what a generator function returns, or a decorator around a coroutine function."""
    yield


def _list_handler(name: str) -> Any:
    handle = _handler(name)

    def handle_many(session: Any, events: Sequence[Event]) -> Iterator[None] | None:
        return next(filter(None, [handle(session, event) for event in events]), None)

    return handle_many


_UPCASTERS = Upcasters()
_UPCASTERS.declare(TYPE, VERSION - 1, lambda payload: {"serial": payload["number"]})


@lru_cache
def _as_it_is(handler: Callable[..., Any]) -> Callable[..., Any]:
    return handler


def groups(
    attempts: int,
    *,
    fraud: bool,
    sharing: str,
    has_removed: bool = False,
    has_coroutines: bool = False,
    parks: bool = False,
) -> dict[str, ConsumerGroup]:
    """Return the consumer groups of both services; they are the same for all worlds."""
    event_types = EventTypeRegistry()
    event_types.upcasters = _UPCASTERS
    retry = RetryPolicy(
        max_attempts=attempts, first=timedelta(seconds=1), longest=timedelta(seconds=4), jitter=0
    )
    how = partial(dict, topic=TOPIC, retry=retry, lease=HANDLER_LEASE)
    styled = awaited if has_coroutines else _as_it_is
    bank = ConsumerGroup("bank", event_types)
    credit = how(retry=replace(retry, then="park")) if parks else how()
    if sharing == "list":
        bank.handles_many(TYPE, **credit)(styled(_list_handler("credit")))
    else:
        bank.handles(TYPE, **credit, alone=sharing == "alone")(styled(_handler("credit")))
    if has_removed:
        bank.handles(REMOVED_TYPE, **how())(styled(_handler("file")))
    refunds = ConsumerGroup("refunds", event_types)
    refunds.compensates(TYPE, **how())(styled(_handler("refund")))
    found = {"bank": bank, "refunds": refunds}
    if fraud:
        bank.compensates(TYPE, **how())(styled(_handler("take_back")))
        found["fraud"] = ConsumerGroup("fraud", event_types)
        found["fraud"].handles(TYPE, **how())(styled(_handler("examine")))
    return found
