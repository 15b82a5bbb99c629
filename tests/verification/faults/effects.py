"""The faults of a network: their effects, which are on, and how often they have struck."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from tests.verification.faults.wire import Kind, Piece


class Direction(StrEnum):
    """A direction through the proxy."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"

    @property
    def opposite(self) -> Direction:
        """Return the other direction."""
        return Direction.TO_CLIENT if self is Direction.TO_SERVER else Direction.TO_SERVER


TO_SERVER, TO_CLIENT = Direction
BOTH = frozenset(Direction)


class Then(StrEnum):
    """What happens to a connection after one of its messages was lost."""

    RESET = "reset"
    """Both ends get an RST at once."""
    HANG = "hang"
    """Nothing arrives in that direction; both ends notice the loss when the fault heals."""
    GO_ON = "go on"
    """The next message arrives as if the lost one had not existed, which TCP itself never does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Bytes arrive `seconds` late, up to `jitter` seconds more, and in order."""

    seconds: float
    jitter: float
    chance: random.Random

    def draw(self) -> float:
        """Return the delay of the next bytes."""
        return self.seconds + self.chance.uniform(0, self.jitter)


@dataclass(frozen=True, slots=True)
class BlackHole:
    """All bytes vanish, also the notice that the other side is gone."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Bytes wait, and arrive when the fault heals."""


@dataclass(frozen=True, slots=True)
class Cut:
    """No connections are possible."""


@dataclass(frozen=True, slots=True)
class Slices:
    """Bytes arrive in segments of `size`."""

    size: int


@dataclass(kw_only=True, slots=True)
class Reset:
    """The connection breaks off after `after` more bytes, or inside a message about `kind`."""

    after: int
    kind: Kind | None
    left: int = field(init=False)
    inside: object = None
    """The stream with a message of the kind in progress."""
    is_over: bool = False

    def __post_init__(self) -> None:
        self.left = self.after

    def concerns(self, stream: object, piece: Piece) -> bool:
        """Return whether the bytes of a piece count; a message that begins is counted again."""
        if self.is_over or self.kind is None:
            return not self.is_over
        if piece.begins and self.inside in (None, stream):
            self.inside = stream if piece.kind == self.kind else None
            self.left = self.after
        return self.inside is stream


@dataclass(kw_only=True, slots=True)
class Loss:
    """Messages about `kind` are lost, from the `nth` on, `times` of them."""

    kind: Kind
    nth: int
    times: float
    then: Then
    seen: int = 0

    def takes(self, kind: Kind | None) -> bool:
        """Count a message that begins, and return whether the message is to be lost."""
        if kind != self.kind:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


Effect = Latency | BlackHole | Hold | Cut | Slices | Reset | Loss
E_co = TypeVar("E_co", bound=Effect, covariant=True)


@dataclass(kw_only=True, slots=True)
class Tally:
    """The activity of a proxy since it was opened."""

    connections: int = 0
    """Connections accepted from clients."""
    passed: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    """Bytes that passed through."""
    vanished: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    """Bytes that were read and never forwarded."""
    swallowed: int = 0
    """Whole messages lost: the nth answer, the nth request."""
    resets: int = 0
    """Connections broken off with RST, by a fault or by one of the ends."""
    cuts: int = 0
    """Connections closed by `cut`."""


@dataclass(eq=False, slots=True)
class Strikes:
    """An effect that is on in some directions, and how often it has struck."""

    effect: Effect
    directions: frozenset[Direction]
    count: int = 0


class Board:
    """All effects that are on; links check them for every piece that passes.

    Only `await_strikes` may be called outside the loop's thread.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.tally = Tally()
        self.on: list[Strikes] = []
        self._changed = asyncio.Event()
        self._struck = threading.Condition()

    def find(self, kind: type[E_co], direction: Direction) -> list[tuple[Strikes, E_co]]:
        """Return the effects of a kind that are on in a direction."""
        return [
            (strikes, strikes.effect)
            for strikes in self.on
            if isinstance(strikes.effect, kind) and direction in strikes.directions
        ]

    def strike(self, strikes: Strikes) -> None:
        """Count that a fault has made a difference."""
        with self._struck:
            strikes.count += 1
            self._struck.notify_all()

    def switch_on(self, strikes: Strikes) -> None:
        self.on.append(strikes)
        self._announce()

    def switch_off(self, gone: Iterable[Strikes]) -> None:
        for strikes in gone:
            self.on.remove(strikes)
        self._announce()

    async def until_changed(self) -> None:
        """Wait until an effect is switched on or off."""
        await self._changed.wait()

    def await_strikes(self, all_of: Iterable[Strikes], *, times: int, timeout: float) -> None:
        """Wait, in any thread, until each has struck `times` times; raises TimeoutError."""
        waiting = list(all_of)
        with self._struck:
            if not self._struck.wait_for(lambda: all(s.count >= times for s in waiting), timeout):
                idle = [f"{s.effect} {s.count} times" for s in waiting if s.count < times]
                raise TimeoutError(f"not {times} strikes within {timeout} s: {'; '.join(idle)}")

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
