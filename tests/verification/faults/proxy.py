"""A TCP proxy that breaks the network between shieldtx and a server, on command and exactly."""

from __future__ import annotations

import asyncio
import copy
import random
import socket
import threading
from collections.abc import Callable, Collection, Coroutine
from types import TracebackType
from typing import Any, Final, Self

from shieldtx.embedded.free_ports import HOST, free_port
from tests.verification.faults.effects import (
    BOTH,
    TO_CLIENT,
    TO_SERVER,
    BlackHole,
    Board,
    Cut,
    Direction,
    Effect,
    Hold,
    Latency,
    Loss,
    Reset,
    Slices,
    Strikes,
    Tally,
    Then,
)
from tests.verification.faults.links import Link
from tests.verification.faults.wire import Api, Kind, Wire, kafka, postgres

__all__ = [
    "BOTH", "TO_CLIENT", "TO_SERVER", "Api", "Fault", "FaultProxy", "Tally", "Then", "kafka",
    "postgres",
]  # fmt: skip

PATIENCE_S: Final = 10.0


class Fault:
    """A fault that is on until it is healed, at the latest when its `with` block ends."""

    def __init__(self, strikes: Strikes, board: Board, heal: Callable[[], None]) -> None:
        self._strikes = strikes
        self._board = board
        self._heal = heal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.heal()

    @property
    def struck(self) -> int:
        """Return how often it made a difference: pieces of a stream, messages or connections."""
        return self._strikes.count

    def until_struck(self, timeout: float = 30.0, *, times: int = 1) -> None:
        """Wait until it has struck `times` times; raises TimeoutError after `timeout` seconds."""
        self._board.await_strikes([self._strikes], times=times, timeout=timeout)

    def heal(self) -> None:
        """Switch the fault off; a second call has no effect.

        Connections with missing bytes are reset: TCP delivers all bytes or breaks off.
        """
        self._heal()


class FaultProxy:
    """A proxy on 127.0.0.1, in threads of this process, to a port of the same machine.

    It accepts at `port` as soon as it exists: without a listener at `target_port`, clients are
    reset, not refused. Faults concern open and new connections. Losing single messages requires the
    protocol, `kafka` or `postgres`, which the proxy follows from the first byte of a connection.
    """

    def __init__(
        self, target_port: int, speaks: Wire | None = None, *, port: int | None = None
    ) -> None:
        self.port = port or free_port()
        self._board = Board(target_port)
        self._speaks = speaks
        self._links: dict[asyncio.Task[None], Link] = {}
        self._errors: list[BaseException] = []
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"proxy {self.port}", daemon=True
        )
        self._thread.start()
        try:
            self._do(self._listen)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and stop; raises any exception from inside the proxy."""
        if self._loop.is_closed():
            return
        self._do(self._shut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        if self._errors:
            raise self._errors[0]

    @property
    def tally(self) -> Tally:
        """Return its counts so far: connections, bytes, messages swallowed."""
        return copy.deepcopy(self._board.tally)

    @property
    def open_connections(self) -> int:
        """Return the number of connections through it now."""
        return len(self._links)

    def retarget(self, port: int) -> None:
        """Send new connections to another port; open connections stay where they are."""
        self._board.target = port

    def latency(
        self,
        seconds: float,
        *,
        jitter: float = 0.0,
        seed: int = 0,
        to: Direction | Collection[Direction] = BOTH,
    ) -> Fault:
        """Deliver everything late, up to `jitter` seconds more, and at the full rate."""
        chance = random.Random(seed)
        return self._switch_on(Latency(seconds=seconds, jitter=jitter, chance=chance), to)

    def cut(self) -> Fault:
        """Close all connections and refuse new ones; it strikes where a connection was open."""
        return self._switch_on(Cut(), BOTH)

    def black_hole(self, *, to: Direction | Collection[Direction] = BOTH) -> Fault:
        """Discard all bytes and the end of streams; no connection is closed."""
        return self._switch_on(BlackHole(), to)

    def hold(self, *, to: Direction | Collection[Direction] = BOTH) -> Fault:
        """Delay all bytes until the fault heals, like a network that recovers in time."""
        return self._switch_on(Hold(), to)

    def slices(self, size: int = 1, *, to: Direction | Collection[Direction] = BOTH) -> Fault:
        """Deliver everything in segments of `size` bytes."""
        return self._switch_on(Slices(size), to)

    def reset_after(
        self, count: int, *, to: Direction = TO_SERVER, of: Kind | None = None
    ) -> Fault:
        """Reset once the connection that carries byte number `count` of a direction from now on.

        With `of`, the bytes are counted from the beginning of a message about it: the connection
        breaks off in the middle.
        """
        self._require_wire(of)
        return self._switch_on(Reset(after=count, kind=of), to)

    def lose_answer(
        self, kind: Kind, *, nth: int = 1, times: float = 1, then: Then = Then.RESET
    ) -> Fault:
        """Swallow the server's nth answer about `kind` from now on: the request was executed.

        For PostgreSQL `kind` is the first token of the answer's tag. The tag is "COMMIT" only if
        the transaction committed.
        """
        return self._lose(kind, TO_CLIENT, nth, times, then)

    def lose_request(
        self, kind: Kind, *, nth: int = 1, times: float = 1, then: Then = Then.RESET
    ) -> Fault:
        """Swallow the nth request about `kind` from now on: the server never receives it."""
        return self._lose(kind, TO_SERVER, nth, times, then)

    def heal(self) -> None:
        """Switch every fault off."""
        self._switch_off(list(self._board.on))

    def until_struck(self, timeout: float = 30.0) -> None:
        """Wait until every fault that is on has struck; raises TimeoutError."""
        self._board.await_strikes(list(self._board.on), times=1, timeout=timeout)

    def _lose(self, kind: Kind, to: Direction, nth: int, times: float, then: Then) -> Fault:
        self._require_wire(kind)
        return self._switch_on(Loss(kind=kind, nth=nth, times=times, then=then), to)

    def _require_wire(self, kind: Kind | None) -> None:
        if kind is not None and self._speaks is None:
            raise ValueError("this proxy knows no messages: make it with speaks=kafka or postgres")

    def _switch_on(self, effect: Effect, to: Direction | Collection[Direction]) -> Fault:
        directions = frozenset([to] if isinstance(to, Direction) else to)
        fault = Strikes(effect, directions)

        async def on() -> None:
            self._board.switch_on(fault)
            if isinstance(effect, Cut):
                await self._sever(fault)

        self._do(on)
        return Fault(fault, self._board, lambda: self._switch_off([fault]))

    def _switch_off(self, faults: list[Strikes]) -> None:
        async def off() -> None:
            gone = [fault for fault in faults if fault in self._board.on]
            self._board.switch_off(gone)
            broken = [task for task, link in self._links.items() if link.is_muted_by(gone)]
            for task in broken:
                self._links[task].break_off()
            await _end(broken)
            if self._listener is None and not self._board.find(Cut, TO_SERVER):
                await self._listen()

        self._do(off)

    async def _sever(self, fault: Strikes) -> None:
        await self._deafen()
        for _ in self._links:
            self._board.tally.cuts += 1
            self._board.strike(fault)
        await _end(list(self._links))

    async def _listen(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setblocking(False)
        self._listener.bind((HOST, self.port))
        self._listener.listen()
        self._accepting = asyncio.create_task(self._accept(self._listener))
        self._accepting.add_done_callback(self._note_error)

    async def _deafen(self) -> None:
        if self._accepting is not None:
            await _end([self._accepting])
        if self._listener is not None:
            self._listener.close()
        self._listener = self._accepting = None

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await self._loop.sock_accept(listener)
            self._board.tally.connections += 1
            link = Link(client, self._board, self._speaks)
            task = asyncio.create_task(link.run())
            self._links[task] = link
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).close()
        self._note_error(task)

    def _note_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)

    async def _shut(self) -> None:
        await self._deafen()
        await _end(list(self._links))

    def _do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a function in the loop's thread, and wait for it."""
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(PATIENCE_S)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
