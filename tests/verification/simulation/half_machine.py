"""Half messages by a state machine: with any order of steps, both sides have the same outcome.

The stores, the barrier and the check-back are the real ones, over SQLite files: one for the outbox,
one for the local transactions. Commit and rollback calls are lost, relays die in the middle of a
check, local transactions come late, clocks jump.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import Connection, Engine, delete, select, update

from shieldtx import LocalOutcome, OutboxStatus, new_event_id
from shieldtx.domain.events import Envelope
from shieldtx.errors import IllegalTransition, LateTransaction, TransactionRefused
from shieldtx.half_messages.check_back import CheckBack, Parking
from shieldtx.half_messages.messages import HalfMessages
from shieldtx.ports.half_messages import CheckClaim, CheckSchedule, NewHalfMessage
from shieldtx.ports.relay import Settlement
from shieldtx.store.barrier import SqlBarrier
from shieldtx.store.half_message_admin import SqlHalfMessageAdmin
from shieldtx.store.half_messages import SqlHalfMessageStore
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.schema import Schema
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.tables import tables

COMMIT, ROLLBACK, UNKNOWN = LocalOutcome.COMMIT, LocalOutcome.ROLLBACK, LocalOutcome.UNKNOWN
PLAN = CheckSchedule(most=4)
SOON = timedelta(seconds=40)
TOO_LONG = timedelta(hours=73)
DAY = timedelta(days=1)
MOST = 3
"""Maximum number of messages."""


class Ending(Enum):
    """The outcome of a local transaction, and the call of its application."""

    COMMITS = auto()
    COMMITS_UNHEARD = auto()
    """The application's call is lost."""
    ROLLS_BACK = auto()
    ROLLS_BACK_UNHEARD = auto()
    """The application's call is lost."""
    ROLLS_BACK_UNSEEN = auto()
    """The application assumes a commit, and reports it."""


class Died(Exception):
    """A process ends in the middle of its work."""


@dataclass
class World:
    """Two databases, and the true outcomes in them."""

    outbox: Engine
    ledger: Engine

    def __post_init__(self) -> None:
        self.tables = tables()
        for engine in (self.outbox, self.ledger):
            Schema(engine, shards=1).upgrade()
        self.store = SqlHalfMessageStore(self.outbox, self.tables, shards=1, plan=PLAN)
        self.admin = SqlHalfMessageAdmin(
            self.outbox, self.tables, barrier_of=lambda *_: self.barrier
        )
        self.admin_without_barrier = SqlHalfMessageAdmin(self.outbox, self.tables)
        self.barrier = SqlBarrier(self.ledger, self.tables, patience=timedelta(milliseconds=1))
        self.relay = SqlRelayStore(self.outbox, self.tables)
        self.messages = HalfMessages(
            store=self.store,
            barrier_of=lambda _: self.barrier,
            to_envelope=lambda *_: _envelope(),
            after_commit=lambda: None,
        )

    def clear(self) -> None:
        for engine in (self.outbox, self.ledger):
            with engine.begin() as connection:
                for table in (self.tables.outbox, self.tables.barrier, self.tables.audit):
                    connection.execute(delete(table))
        SqlLeaseStore(self.outbox, self.tables).renew(relay="r", lease=DAY)

    def rows(self) -> dict[UUID, Any]:
        with self.outbox.connect() as connection:
            return {row.event_id: row for row in connection.execute(select(self.tables.outbox))}

    def jump(self, by: timedelta) -> None:
        """Let the outbox's clock jump ahead: all planned times are nearer by that much."""
        o = self.tables.outbox
        for event_id, row in self.rows().items():
            if row.check_at is not None:
                moved = {"check_at": row.check_at - by, "due_at": row.due_at - by}
                with self.outbox.begin() as connection:
                    connection.execute(update(o).where(o.c.event_id == event_id).values(moved))


class HalfMachine(RuleBasedStateMachine):
    """The possible actions of an application, its relays, an operator and time."""

    world: World

    messages = Bundle("messages")

    def __init__(self) -> None:
        super().__init__()
        self.world.clear()
        self.flying: tuple[UUID, Connection] | None = None
        """The local transaction in flight; SQLite has one at a time."""
        self.ended: dict[UUID, bool] = {}
        """The ended local transactions, and whether they committed."""
        self.prepared = 0
        self.published: list[UUID] = []

    def checker(self) -> Callable[[UUID], LocalOutcome]:
        return self.world.barrier.outcome_of

    # --- the application --------------------------------------------------------------------------

    # Few messages, so that each has many steps.
    @precondition(lambda self: self.prepared < MOST)
    @rule(target=messages)
    def prepare(self) -> UUID:
        envelope = _envelope()
        self.world.store.prepare([NewHalfMessage(envelope=envelope)])
        self.prepared += 1
        return envelope.id

    @precondition(lambda self: self.flying is None)
    @rule(message=messages)
    def begin_local(self, message: UUID) -> None:
        """Begin in time, or late; again only if no check excluded it and it has not committed."""
        connection = self.world.ledger.connect()
        try:
            self.world.barrier.enter(connection, [message])
        except LateTransaction:
            connection.close()
            self.ended.setdefault(message, False)
        else:
            assert not self.ended.get(message), "it committed before, and got in again"
            self.flying = (message, connection)

    @precondition(lambda self: self.flying is not None)
    @rule(ending=st.sampled_from(Ending))
    def end_local(self, ending: Ending) -> None:
        assert self.flying is not None
        message, connection = self.flying
        self.flying = None
        commits = ending in {Ending.COMMITS, Ending.COMMITS_UNHEARD}
        if commits:
            connection.commit()
        else:
            connection.rollback()
        connection.close()
        # A rolled-back transaction may be retried, unless the application has reported it.
        if ending is not Ending.ROLLS_BACK_UNHEARD:
            self.ended[message] = commits
        if ending is Ending.ROLLS_BACK_UNSEEN:
            self.tell_committed(message)
        elif ending is Ending.COMMITS:
            self.world.store.resolve([message], COMMIT)
        elif ending is Ending.ROLLS_BACK:
            self.world.store.resolve([message], ROLLBACK)
            self.world.barrier.outcome_of(message)

    def tell_committed(self, message: UUID) -> None:
        with suppress(TransactionRefused, IllegalTransition):
            self.world.messages.commit([message])

    @rule(message=messages)
    def say_again(self, message: UUID) -> None:
        """Repeat a call that was delayed."""
        if message in self.ended:
            said = COMMIT if self.ended[message] else ROLLBACK
            self.world.store.resolve([message], said)

    # --- the relays -------------------------------------------------------------------------------

    @rule(dies=st.sampled_from(["", "", "before the checker", "after the checker"]))
    def check(self, dies: str) -> None:
        self.world.jump(SOON)
        with suppress(Died):
            self._check(dies)

    def _check(self, dies: str = "") -> None:
        outcome_of = self.checker()

        def checker(envelope: Envelope) -> LocalOutcome:
            return outcome_of(envelope.id)

        store = _Dying(self.world.store, dies) if dies else self.world.store
        check_back = CheckBack(
            event_type="orders.placed",
            store=store,  # type: ignore[arg-type]
            checker=checker,
            timeout=timedelta(seconds=10),
            budget=timedelta(seconds=20),
        )
        while check_back.run_once().more:
            pass

    @rule()
    def park(self) -> None:
        Parking(store=self.world.store).run_once()

    @rule()
    def jump(self) -> None:
        self.world.jump(TOO_LONG)

    @rule()
    def publish(self) -> None:
        claim = self.world.relay.claim(relay="r", limit=100)
        ids = [claimed.envelope.id for claimed in claim.events]
        if ids:
            self.published += ids
            self.world.relay.settle(claim.token, Settlement(processed=ids))

    # --- an operator ------------------------------------------------------------------------------

    @property
    def admin(self) -> SqlHalfMessageAdmin:
        return self.world.admin

    @rule(message=messages)
    def decide(self, message: UUID) -> None:
        """Decide about an unresolved message, by the database of the local transactions."""
        found = self.admin.find(message)
        assert found is not None
        if found.status is OutboxStatus.UNRESOLVED:
            truth = self.world.barrier.outcome_of(message)
            if truth is not UNKNOWN:
                self.admin.decide([found], truth, who="ann")

    @rule(message=messages, outcome=st.sampled_from([COMMIT, ROLLBACK]))
    def decide_at_random(self, message: UUID, outcome: LocalOutcome) -> None:
        """Decide without knowledge about a message that may be in transit, or settled."""
        found = self.admin.find(message)
        assert found is not None
        with suppress(IllegalTransition):
            self.admin.decide([found], outcome, who="bob")

    # --- what holds at any time -------------------------------------------------------------------

    @invariant()
    def nothing_is_sent_that_did_not_commit(self) -> None:
        assert all(self.ended.get(message) for message in self.published)
        assert len(set(self.published)) == len(self.published)

    @invariant()
    def what_committed_is_never_discarded(self) -> None:
        for message, row in self.world.rows().items():
            if self.ended.get(message):
                assert row.status != "DISCARDED"
            elif row.status in {"INIT", "PROCESSING", "PROCESSED"}:
                raise AssertionError(f"{row.status} without a local transaction")

    @invariant()
    def the_checks_are_bounded(self) -> None:
        for row in self.world.rows().values():
            assert 0 <= row.checks <= PLAN.most
            assert (row.check_at is not None) == (row.status == "HALF")

    def teardown(self) -> None:
        """Expect that each message is settled or waits for an operator."""
        if self.flying is not None:
            self.flying[1].rollback()
            self.flying[1].close()
            self.flying = None
        for _ in range(PLAN.most + 1):
            self.world.jump(SOON)
            self._check()
            self.park()
        self.publish()
        for message, row in self.world.rows().items():
            ends = {"PROCESSED"} if self.ended.get(message) else {"DISCARDED"}
            assert row.status in ends | {"UNRESOLVED"}, (message, row.status)


class _Dying:
    """A store of a relay that dies during its first check."""

    def __init__(self, real: SqlHalfMessageStore, dies: str) -> None:
        self._real = real
        self._dies = dies

    def claim_checks(self, event_type: str, *, limit: int) -> CheckClaim:
        claim = self._real.claim_checks(event_type, limit=limit)
        if self._dies == "before the checker":
            raise Died
        return claim

    def answer(self, *_: object, **__: object) -> bool:
        raise Died

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _envelope() -> Envelope:
    return Envelope(
        id=new_event_id(),
        type="orders.placed",
        source="orders",
        topic="orders.placed",
        payload="{}",
        time=datetime.now(UTC),
        key="k",
    )
