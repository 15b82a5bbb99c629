"""Tests that the simulation implements its ports: a missing method would look like a fault."""

from __future__ import annotations

import inspect

import pytest

from shieldtx.ports.broker import Publisher, Subscriber
from shieldtx.ports.half_messages import Barrier, HalfMessageStore
from shieldtx.ports.inbox import InboxStore
from shieldtx.ports.lanes import Lanes
from shieldtx.ports.pauses import PauseStore
from shieldtx.ports.relay import LeaseStore, RelayStore
from shieldtx.ports.savepoint import Savepoint
from tests.verification.simulation.broker import MemoryPublisher, MemorySubscriber
from tests.verification.simulation.half_messages import MemoryBarrier, MemoryHalfMessageStore
from tests.verification.simulation.inbox import MemoryInboxStore, MemorySavepoint
from tests.verification.simulation.lanes import SimulatedLanes
from tests.verification.simulation.outbox import MemoryLeaseStore, MemoryOutboxStore
from tests.verification.simulation.pauses import MemoryPauseStore

PAIRS: list[tuple[type, type]] = [
    (Barrier, MemoryBarrier),
    (HalfMessageStore, MemoryHalfMessageStore),
    (InboxStore, MemoryInboxStore),
    (Lanes, SimulatedLanes),
    (LeaseStore, MemoryLeaseStore),
    (PauseStore, MemoryPauseStore),
    (Publisher, MemoryPublisher),
    (RelayStore, MemoryOutboxStore),
    (Savepoint, MemorySavepoint),
    (Subscriber, MemorySubscriber),
]

NOT_CALLED = {
    Barrier: {"admit", "has_entered", "is_reached_by", "may_have_written", "visible_outcome"},
    HalfMessageStore: {"half_types"},
    RelayStore: {"until_due"},
}
"""Methods for code that the simulation does not run: sessions of services, waits of workers."""


@pytest.mark.parametrize(("port", "memory"), PAIRS, ids=[port.__name__ for port, _ in PAIRS])
def test_memory_class_has_each_method_of_its_port(port: type, memory: type) -> None:
    methods = {name for name, _ in inspect.getmembers(port, inspect.isfunction) if name[0] != "_"}
    assert methods
    missing = {name for name in methods if not callable(getattr(memory, name, None))}
    assert missing == NOT_CALLED.get(port, set())
