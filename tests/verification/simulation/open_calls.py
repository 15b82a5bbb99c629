"""Calls of the stores in threads of their own, whose transactions are open concurrently.

A call runs until it waits for a lock, stays open in the middle of its transaction, or has ended. On
PostgreSQL the server reports whether it waits; in memory the database does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from enum import Enum
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Engine, event, text

from tests.verification.simulation.database import Database, Transaction
from tests.verification.simulation.differential import outcome_of

PATIENCE_S = 30.0
"""After this time a call that neither waits nor ends is a defect of the harness."""
_POLL_S = 0.002

_IS_BLOCKED = text("SELECT pg_blocking_pids(:waiting) && CAST(:open AS integer[])")


class Stage(Enum):
    """The progress of a call."""

    RUNS = "runs"
    WAITS = "waits"
    IS_OPEN = "is open"
    HAS_ENDED = "has ended"


class OpenCall:
    """One call of one side's stores; `call` gets the stores and this object."""

    def __init__(self, call: Callable[[Any, OpenCall], Any], stores: Any, *, stays: bool) -> None:
        """Make a call that stays open or, without `stays`, ends at once."""
        self._call = call
        self._stores = stores
        self._stays = stays
        self._changed = threading.Condition()
        self._stage = Stage.RUNS
        self.fails = False
        """Whether it ends by an error."""
        self.holds_its_commit = False
        """Whether it stays open at the commit, for want of a position inside."""
        self.answer: Any = None
        self.backend: int | None = None
        """The server process of its connection."""
        self.is_blocked = False
        """With a server: whether it waits there."""

    @property
    def stage(self) -> Stage:
        return Stage.WAITS if self.is_blocked else self._stage

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def go_on(self) -> None:
        """Continue a call that waits or is open."""
        with self._changed:
            self._stage = Stage.RUNS
            self._changed.notify_all()

    def has_stopped(self, within: float = PATIENCE_S) -> bool:
        """Return whether it stops, or has stopped, within this many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stage is not Stage.RUNS, within)

    # --- from inside ------------------------------------------------------------------------------

    def stay_open(self, *_: Any) -> None:
        """Leave the transaction open until it gets its outcome."""
        if self._stays:
            self._stop(Stage.IS_OPEN)
        if self.fails:
            raise ArithmeticError

    def before_commit(self) -> None:
        if self.holds_its_commit:
            self.stay_open()

    def wait(self) -> None:
        """Wait until some transaction has ended."""
        self._stop(Stage.WAITS)

    def _stop(self, stage: Stage) -> None:
        with self._changed:
            self._stage = stage
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stage is Stage.RUNS)

    def _run(self) -> None:
        _of_this_thread.call = self
        try:
            self.answer = outcome_of(lambda stores: self._call(stores, self), self._stores)
        except Exception as error:  # noqa: BLE001  compared with what the other side does
            self.answer = f"{type(error).__name__}: {error}"
        with self._changed:
            self._stage = Stage.HAS_ENDED
            self._changed.notify_all()


_of_this_thread = threading.local()


class WaitingDatabase(Database):
    """A database in memory whose statements wait for the end of a transaction."""

    def wait(self, key: Hashable) -> None:  # noqa: ARG002  woken at every end, it looks again
        _of_this_thread.call.wait()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Let the call stay open before the commit."""
        with super().transaction() as transaction:
            yield transaction
            _of_this_thread.call.before_commit()


class Side:
    """The calls of one side that have not ended; here of the stores in memory."""

    def __init__(self, stores: Any) -> None:
        self.stores = stores
        self.calls: list[OpenCall] = []

    def begin(self, call: Callable[[Any, OpenCall], Any], *, stays: bool, fails: bool) -> OpenCall:
        """Start a call, and return when it has stopped."""
        made = OpenCall(call, self.stores, stays=stays)
        made.fails = fails
        self.calls.append(made)
        made.start()
        self.settle_down()
        return made

    def end(self, call: OpenCall, *, fails: bool) -> None:
        """Let an open call end; calls that waited for it continue."""
        call.fails = fails
        call.go_on()
        self.settle_down()
        for other in self.calls:
            if other.stage is Stage.WAITS:
                other.go_on()
        self.settle_down()

    def settle_down(self) -> None:
        """Return when every call has stopped."""
        for call in self.calls:
            if not call.has_stopped():
                raise TimeoutError("a call in memory has not stopped")
        self.calls = [call for call in self.calls if call.stage is not Stage.HAS_ENDED]

    def close(self) -> None:
        """End all calls by errors."""
        while opened := [call for call in self.calls if call.stage is Stage.IS_OPEN]:
            self.end(opened[0], fails=True)


class ServerSide(Side):
    """The calls of the stores on PostgreSQL."""

    def __init__(self, stores: Any, monitor: Connection) -> None:
        super().__init__(stores)
        self._monitor = monitor

    def settle_down(self) -> None:
        """Return when every call has stopped, or waits for a lock of an open one."""
        # Waiting calls come last: the others may have released them.
        for call in sorted(self.calls, key=lambda call: call.is_blocked):
            call.is_blocked = False
            ends = monotonic() + PATIENCE_S
            while not call.has_stopped(_POLL_S):
                call.is_blocked = self._is_blocked(call)
                if call.is_blocked:
                    break
                if monotonic() > ends:
                    raise TimeoutError("a call on PostgreSQL neither waits nor ends")
        self.calls = [call for call in self.calls if call.stage is not Stage.HAS_ENDED]

    def end(self, call: OpenCall, *, fails: bool) -> None:
        """Let an open call end; the server continues the calls that waited for it."""
        call.fails = fails
        call.go_on()
        self.settle_down()

    def _is_blocked(self, call: OpenCall) -> bool:
        others = [other.backend for other in self.calls if other is not call]
        asked = {"waiting": call.backend, "open": others}
        return bool(self._monitor.scalar(_IS_BLOCKED, asked))


@contextmanager
def monitored(engine: Engine) -> Iterator[Connection]:
    """Note the server process of each call, and yield a connection for monitoring queries."""

    def note_backend(connection: Any, _record: Any, _proxy: Any) -> None:
        call = getattr(_of_this_thread, "call", None)
        if call is not None:
            call.backend = connection.info.backend_pid

    def before_commit(connection: Connection) -> None:
        call = getattr(_of_this_thread, "call", None)
        if call is not None:
            try:
                call.before_commit()
            except ArithmeticError:
                # Otherwise the connection would return to its pool with an open transaction.
                connection.connection.rollback()
                raise

    event.listen(engine.pool, "checkout", note_backend)
    event.listen(engine, "commit", before_commit)
    try:
        with engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")
    finally:
        event.remove(engine.pool, "checkout", note_backend)
        event.remove(engine, "commit", before_commit)
