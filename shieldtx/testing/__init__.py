"""For tests of services: whole events in memory, a clock that moves, a broker that fails."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shieldtx.testing.app import MemoryApp
    from shieldtx.testing.memory_broker import MemoryBroker
    from shieldtx.testing.outcome import Drained, EventRow, EventsFailed, EventStates, NotDrained
    from shieldtx.testing.replacement import memory_app

__all__ = [
    "memory_app",
    "MemoryApp",
    "MemoryBroker",
    "Drained",
    "EventRow",
    "EventStates",
    "EventsFailed",
    "NotDrained",
]

_HOMES = {
    "memory_app": "replacement",
    "MemoryApp": "app",
    "MemoryBroker": "memory_broker",
    "Drained": "outcome",
    "EventRow": "outcome",
    "EventStates": "outcome",
    "EventsFailed": "outcome",
    "NotDrained": "outcome",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: pytest imports this package in every run."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
