"""Tests of half messages by a state machine, and of the defects that it has to find."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test
from sqlalchemy import create_engine, event, text

from shieldtx import LocalOutcome
from shieldtx.store.half_message_admin import SqlHalfMessageAdmin
from tests.verification.simulation.half_machine import COMMIT, ROLLBACK, HalfMachine, World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        engines = [
            create_engine(f"sqlite:///{Path(folder) / name}.db", connect_args={"timeout": 0.001})
            for name in ("outbox", "ledger")
        ]
        for engine in engines:
            event.listen(engine, "connect", _forget_the_disk)
        yield World(*engines)
        for engine in engines:
            engine.dispose()


def _forget_the_disk(connection: Any, record: Any) -> None:
    """Turn off durable writes: no machine loses its power here."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")


@contextmanager
def machine_in(world: World, kind: type[HalfMachine]) -> Iterator[type[HalfMachine]]:
    kind.world = world
    yield kind


def test_both_databases_end_alike_whatever_comes(world: World) -> None:
    with machine_in(world, HalfMachine) as machine:
        run_state_machine_as_test(
            machine, settings=settings(max_examples=40, stateful_step_count=40)
        )


def _is_found_out(world: World, kind: type[HalfMachine]) -> None:
    # The first finding is enough: a shortest one would take a while. One in some 70 histories finds
    # a defect.
    until_found = settings(max_examples=2000, stateful_step_count=40, phases=[Phase.generate])
    with machine_in(world, kind) as machine, pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=until_found)


class OnlyLooks(HalfMachine):
    """A checker that reads whether the local transaction committed, and enters no barrier."""

    def checker(self) -> Callable[[UUID], LocalOutcome]:
        def look(message: UUID) -> LocalOutcome:
            with self.world.ledger.connect() as connection:
                query = text("SELECT committed FROM shield_barrier WHERE event_id = :id")
                return COMMIT if connection.scalar(query, {"id": message.hex}) else ROLLBACK

        return look


@pytest.mark.thorough
def test_machine_detects_a_check_that_only_reads(world: World) -> None:
    _is_found_out(world, OnlyLooks)


class BelievesEveryCommit(HalfMachine):
    """A commit call is accepted, whatever the barrier has."""

    def tell_committed(self, message: UUID) -> None:
        self.world.store.resolve([message], COMMIT)


@pytest.mark.thorough
def test_machine_detects_a_commit_accepted_without_its_barrier(
    world: World,
) -> None:
    _is_found_out(world, BelievesEveryCommit)


class CommitsInTheEnd(HalfMachine):
    """Messages of unknown outcome are sent, so that they are out of the way."""

    @rule()
    def park(self) -> None:
        super().park()
        for message, row in self.world.rows().items():
            if row.status == "UNRESOLVED":
                admin = self.world.admin_without_barrier
                found = admin.find(message)
                assert found is not None
                admin.decide([found], COMMIT, who="nobody")


@pytest.mark.thorough
def test_machine_detects_a_default_after_the_last_check(world: World) -> None:
    _is_found_out(world, CommitsInTheEnd)


class DecidesWithoutTheBarrier(HalfMachine):
    """An operator's decision leaves the barrier open for a later local transaction."""

    @property
    def admin(self) -> SqlHalfMessageAdmin:
        return self.world.admin_without_barrier


@pytest.mark.thorough
def test_machine_detects_a_decision_that_leaves_the_barrier_open(world: World) -> None:
    _is_found_out(world, DecidesWithoutTheBarrier)
