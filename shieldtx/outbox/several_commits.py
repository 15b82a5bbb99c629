"""Sessions with several databases, whose commits may have different outcomes."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from shieldtx.errors import TransactionRefused
from shieldtx.outbox.session_binding import SessionBinding
from shieldtx.ports.outbox import OutboxWriter


def refuse_several_commits(
    connections: Collection[Connection], binding: SessionBinding, writer: OutboxWriter
) -> None:
    """Raise TransactionRefused when the commit of one of a session's databases may succeed alone.

    A database that was only read is allowed: its commit changes nothing.
    """

    def is_to_be_committed(connection: Connection) -> bool:
        return connection.in_transaction() and (
            binding.takes_events(connection) or writer.may_have_written(connection)
        )

    if len(connections) > 1 and sum(map(is_to_be_committed, connections)) > 1:
        raise TransactionRefused(
            "the session writes into several databases, whose commits may end differently, so "
            "the event could be published without the data, or the data be kept without it: "
            "use Session(twophase=True), a half message (docs/how-to/half-messages.md), or "
            "a session for each database"
        )
