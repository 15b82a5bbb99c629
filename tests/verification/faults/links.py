"""A connection through the proxy: a client's requests, the server's answers, and their faults."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Final

from shieldtx.embedded.free_ports import HOST
from tests.verification.faults.effects import (
    TO_CLIENT,
    TO_SERVER,
    BlackHole,
    Board,
    Direction,
    Hold,
    Latency,
    Loss,
    Reset,
    Slices,
    Strikes,
    Then,
)
from tests.verification.faults.wire import Piece, Scanner, Wire

_CHUNK: Final = 256 * 1024
_CHUNKS_ON_THE_WAY: Final = 64
_SLICES_AT_ONCE: Final = 16
_RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time


class _BrokenOff(Exception):
    """The link has to be reset."""


class Flow:
    """One direction of a link.

    One task reads and decides about the bytes; another writes the bytes that are to arrive, each
    piece at its time.
    """

    def __init__(
        self,
        direction: Direction,
        board: Board,
        source: socket.socket,
        sink: socket.socket,
        scanner: Scanner | None,
    ) -> None:
        self.muted_by: Strikes | None = None
        """The fault that has made a hole in this stream: nothing may follow."""
        self.direction = direction
        self._board = board
        self._source = source
        self._sink = sink
        self._scanner = scanner
        self._losing = False
        self._under_way: asyncio.Queue[tuple[float, bytes | _BrokenOff | None]] = asyncio.Queue(
            _CHUNKS_ON_THE_WAY
        )

    def mute(self, fault: Strikes) -> None:
        """Let nothing arrive any more."""
        self.muted_by = self.muted_by or fault

    async def read(self) -> None:
        """Read from the source until it ends."""
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._source, _CHUNK):
            self._pull_into_holes()
            await self._take(data)
        self._pull_into_holes()
        await self._send(None)

    async def write(self) -> None:
        """Write to the sink what is to arrive, until the source has ended."""
        loop = asyncio.get_running_loop()
        while True:
            due, item = await self._under_way.get()
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            await self._until_let_go()
            if isinstance(item, _BrokenOff):
                raise item
            if item is None:
                if self.muted_by is None:
                    self._sink.shutdown(socket.SHUT_WR)
                return
            await self._give(item)
            self._board.tally.passed[self.direction] += len(item)

    async def _take(self, data: bytes) -> None:
        pieces = self._scanner.feed(data) if self._scanner else [Piece(data=data)]
        for piece in pieces:
            if self.muted_by is None and piece.begins:
                self._losing = await self._is_lost(piece)
            if self.muted_by is not None or self._losing:
                self._board.tally.vanished[self.direction] += len(piece.data)
            else:
                for part in self._up_to_reset(piece):
                    await self._send(part)

    async def _send(self, item: bytes | _BrokenOff | None) -> None:
        due = 0.0
        if item:
            for fault, latency in self._board.find(Latency, self.direction):
                due = max(due, asyncio.get_running_loop().time()) + latency.draw()
                self._board.strike(fault)
        await self._under_way.put((due, item))

    def _pull_into_holes(self) -> None:
        for fault, _ in self._board.find(BlackHole, self.direction):
            self.mute(fault)
            self._board.strike(fault)

    async def _is_lost(self, piece: Piece) -> bool:
        for fault, loss in self._board.find(Loss, self.direction):
            if loss.takes(piece.kind):
                self._board.tally.swallowed += 1
                self._board.strike(fault)
                if loss.then is Then.HANG:
                    self.mute(fault)
                if loss.then is Then.RESET:
                    await self._send(_BrokenOff())
                return True
        return False

    def _up_to_reset(self, piece: Piece) -> Iterator[bytes | _BrokenOff]:
        """Yield the piece, or the part that arrives before the connection breaks off."""
        for fault, reset in self._board.find(Reset, self.direction):
            if not reset.concerns(self, piece):
                continue
            if len(piece.data) >= reset.left:
                reset.is_over = True
                self._board.strike(fault)
                yield piece.data[: reset.left]
                yield _BrokenOff()
                return
            reset.left -= len(piece.data)
        yield piece.data

    async def _until_let_go(self) -> None:
        while held := self._board.find(Hold, self.direction):
            for fault, _ in held:
                self._board.strike(fault)
            await self._board.until_changed()

    async def _give(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        for fault, slices in self._board.find(Slices, self.direction):
            self._board.strike(fault)
            for count, start in enumerate(range(0, len(data), slices.size)):
                await loop.sock_sendall(self._sink, data[start : start + slices.size])
                if count % _SLICES_AT_ONCE == 0:
                    await asyncio.sleep(0)
            return
        await loop.sock_sendall(self._sink, data)


class Link:
    """A client's connection, and the corresponding connection to the server."""

    def __init__(self, client: socket.socket, board: Board, wire: Wire | None) -> None:
        self._board = board
        self._client = client
        self._server = socket.socket()
        for end in self._ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        requests, answers = wire() if wire else (None, None)
        self._flows = {
            TO_SERVER: Flow(TO_SERVER, board, client, self._server, requests),
            TO_CLIENT: Flow(TO_CLIENT, board, self._server, client, answers),
        }

    def is_muted_by(self, faults: list[Strikes]) -> bool:
        """Return whether bytes are missing because of one of these faults."""
        return any(flow.muted_by in faults for flow in self._flows.values())

    async def run(self) -> None:
        """Forward bytes until both ends have finished, or one breaks off."""
        try:
            if await self._connect():
                await self._pass_on()
            else:
                await self._swallow_client()
        except* _BrokenOff:
            self.break_off()

    def close(self) -> None:
        """Close both connections; the forwarding task must have ended."""
        for end in self._ends:
            end.close()

    def break_off(self) -> None:
        """Send an RST to both ends when the link is closed."""
        self._board.tally.resets += 1
        for end in self._ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)

    async def _connect(self) -> bool:
        """Connect to the server; a black hole leaves the client without a server."""
        for hole, _ in self._board.find(BlackHole, TO_SERVER):
            self._flows[TO_SERVER].mute(hole)
            self._board.strike(hole)
            return False
        address = HOST, self._board.target
        try:
            await asyncio.get_running_loop().sock_connect(self._server, address)
        except OSError:
            self._tell(TO_CLIENT)
            return False
        return True

    async def _pass_on(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for direction, flow in self._flows.items():
                tasks.create_task(self._until_gone(flow.read(), news=direction))
                tasks.create_task(self._until_gone(flow.write(), news=direction.opposite))

    async def _swallow_client(self) -> None:
        with suppress(OSError):
            await self._flows[TO_SERVER].read()

    async def _until_gone(self, work: Coroutine[None, None, None], *, news: Direction) -> None:
        try:
            await work
        except OSError:
            self._tell(news)

    def _tell(self, news: Direction) -> None:
        """Break off because one end is gone, unless this notice vanishes before the other end."""
        for hole, _ in self._board.find(BlackHole, news):
            self._board.strike(hole)
            for flow in self._flows.values():
                flow.mute(hole)
            return
        raise _BrokenOff

    @property
    def _ends(self) -> tuple[socket.socket, socket.socket]:
        return self._client, self._server
