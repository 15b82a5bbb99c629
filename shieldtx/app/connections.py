"""The connections of a service: its engines, and the hints that wake its relays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property

from sqlalchemy import Engine

from shieldtx.settings.settings import Settings
from shieldtx.store.connections import MAX_CONNECTIONS, Pooler, open_engine, read_committed_view
from shieldtx.store.idleness import SHORTEST, limited_view
from shieldtx.store.notify import Listener, Notifier
from shieldtx.store.tables import Tables, tables

log = logging.getLogger(__name__)


class Connections:
    """Opens the engines of the settings at their first use, and closes those that it has opened."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None,
        longest_lease: Callable[[], timedelta],
    ) -> None:
        """Connect to nothing yet; a given `engine` replaces the URL of the settings.

        A connection may be idle in a transaction for as long as a handler's `longest_lease`.
        """
        self._settings = settings
        self._given = engine
        self._longest_lease = longest_lease

    @cached_property
    def tables(self) -> Tables:
        """The tables in the configured schema."""
        return tables(self._settings.database_schema)

    @cached_property
    def engine(self) -> Engine:
        """The engine of relay and consumers; services write through sessions of their own."""
        if self._given is not None:
            return read_committed_view(self._given)
        return self._open_engine(idle=self._longest_idleness)

    @cached_property
    def relay_engine(self) -> Engine:
        """The engine of a relay's own transactions: a stopped relay loses them with its lease.

        The pool is separate, since claims run without a BEGIN that could limit their idle time.
        With a given engine, or through a pooler, each transaction is limited.
        """
        lease = max(self._settings.relay_lease, SHORTEST)
        is_session_ours = self._given is None and self._has_server
        if is_session_ours and self._settings.database_pooler is Pooler.NONE:
            return self._open_engine(idle=lambda: lease)
        return limited_view(self.engine, idle=lease)

    @cached_property
    def checks_engine(self) -> Engine:
        """The engine of a relay's checks of half messages, which wait for other transactions.

        The pool is separate: events are sent however long the checks wait. A given engine also
        serves the checks.
        """
        if self._given is not None or not self._has_server:
            return self.engine
        most = MAX_CONNECTIONS + self._settings.half_check_threads
        return self._open_engine(idle=self._longest_idleness, most=most)

    def hint(self) -> None:
        """Wake the relays, after a commit that wrote an event."""
        if self._sends_hints:
            self._notifier.hint()

    def listener(self, wake: Callable[[], None]) -> Listener | None:
        """Return the listener for wake-up hints; None where hints are not available.

        A transaction pooler keeps no session that could listen: a relay that connects through it
        only polls.
        """
        if not self._sends_hints:
            return None
        if self._settings.database_pooler is Pooler.TRANSACTION:
            log.info(
                "transaction pooler: relay polls only", extra={"action": "wake_ups_unavailable"}
            )
            return None
        return Listener(self.engine, self._settings.database_schema, wake)

    def close(self) -> None:
        """Close the engines that this object has opened."""
        opened = vars(self)
        if "_notifier" in opened:
            self._notifier.close()
        if self._given is not None:
            return
        for name in ("engine", "relay_engine", "checks_engine"):
            if name in opened:
                opened[name].dispose()

    def _open_engine(self, *, idle: Callable[[], timedelta], most: int = MAX_CONNECTIONS) -> Engine:
        s = self._settings
        return open_engine(s.url, idle=idle, pooler=s.database_pooler, most=most)

    def _longest_idleness(self) -> timedelta:
        """Return a handler's longest idle time; handlers may be declared after the first use."""
        return max(self._longest_lease(), self._settings.relay_lease)

    @cached_property
    def _has_server(self) -> bool:
        return self._settings.url.get_backend_name() == "postgresql"

    @cached_property
    def _sends_hints(self) -> bool:
        return self._settings.relay_wakeup and self._has_server

    @cached_property
    def _notifier(self) -> Notifier:
        return Notifier(self.engine, self._settings.database_schema)
