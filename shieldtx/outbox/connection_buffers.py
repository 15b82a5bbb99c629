"""Registers buffers on a connection, for its commit, its statements and their failures."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

from shieldtx.domain.statement_watches import BUFFERS


class Buffer(Protocol):
    """Keeps events for a connection."""

    @property
    def has_events(self) -> bool:
        """Whether the buffer still has events, and needs further notifications."""
        ...


def register(connection: Connection, buffer: Buffer) -> None:
    """Notify a buffer of the events of a connection."""
    buffers: list[Buffer] | None = connection.get_execution_options().get(BUFFERS)
    if buffers is None:
        buffers = []
        connection.execution_options(**{BUFFERS: buffers})
    if buffer not in buffers:
        # A connection may outlive many sessions that were made on it.
        buffers[:] = [each for each in buffers if each.has_events]
        buffers.append(buffer)
