"""Registers buffers on a connection, for its commit, its statements and their failures."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection

BUFFERS = "shieldtx.buffers"
"""The key of the buffers in the `info` of a session and the options of a connection."""


class Buffer(Protocol):
    """Keeps events for a connection."""

    @property
    def has_events(self) -> bool:
        """Whether the buffer still has events, and needs further notifications."""
        ...


def hear_of(connection: Connection, buffer: Buffer) -> None:
    """Notify a buffer of the events of a connection."""
    heard_by: list[Buffer] | None = connection.get_execution_options().get(BUFFERS)
    if heard_by is None:
        heard_by = []
        connection.execution_options(**{BUFFERS: heard_by})
    if buffer not in heard_by:
        # A connection may outlive many sessions that were made on it.
        heard_by[:] = [each for each in heard_by if each.has_events]
        heard_by.append(buffer)
