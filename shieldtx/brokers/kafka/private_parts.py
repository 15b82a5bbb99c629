"""Private parts of kafka-python that shieldtx replaces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaTCPTransport
from kafka.record.default_records import DefaultRecordBatch

from shieldtx.errors import ConfigurationError

PARTS: Final[dict[Any, tuple[str, ...]]] = {
    KafkaConnectionManager: ("_build_transport",),
    KafkaNetSocket: ("register_class", "sock_connect"),
    KafkaTCPTransport: ("_close", "handshake"),
    ConsumerCoordinator: ("_handle_heartbeat_response",),
    KafkaConsumer: ("_poll_once", "resume"),
    Fetcher: ("_append", "PartitionRecords"),
    getattr(Fetcher, "PartitionRecords", None): ("take", "_unpack_records"),
    DefaultRecordBatch: ("_read_msg",),
}
"""Overridden members by class. If a member is missing, its replacement would never be called."""


@cache
def require_parts() -> None:
    """Raise ConfigurationError for a release of kafka-python that shieldtx does not know."""
    if missing := list(missing_parts()):
        raise ConfigurationError(
            f"kafka-python {version('kafka-python')} has no {', '.join(missing)}, which shieldtx "
            "replaces: install kafka-python>=3.0.9,<3.1"
        )


def missing_parts() -> Iterator[str]:
    """Yield the names of missing parts."""
    for owner, names in PARTS.items():
        for name in names:
            if not hasattr(owner, name):
                yield f"{getattr(owner, '__qualname__', owner)}.{name}"
