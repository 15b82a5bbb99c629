"""Lanes of a simulated consumer: they take turns at each call of a port, as the schedule draws."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn

if TYPE_CHECKING:
    from tests.verification.simulation.processes import Process

T = TypeVar("T")


class SimulatedLanes:
    """Drives the coroutines of the lanes itself, without an event loop (the port Lanes)."""

    def __init__(self, process: Process[Any], count: int) -> None:
        self.count = count
        self._process = process

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run the calls, each up to its next turn, in an order that the schedule draws."""
        schedule, process = self._process.world.schedule, self._process
        lanes: dict[int, Coroutine[Any, Any, T]] = {
            n: greenlet_spawn(call) for n, call in enumerate(calls)
        }
        results: dict[int, T] = {}
        errors: list[Exception] = []
        turn, process.take_turn = process.take_turn, _let_others_run
        try:
            while lanes:
                # A single lane draws nothing, so that it does not change the other draws.
                turns = sorted(lanes)
                number = turns[schedule.between(0, len(turns) - 1)] if len(turns) > 1 else turns[0]
                try:
                    lanes[number].send(None)
                except StopIteration as ended:
                    results[number] = ended.value
                    del lanes[number]
                except Exception as error:  # noqa: BLE001  raised when all lanes have ended
                    errors.append(error)
                    del lanes[number]
        except BaseException as death:
            # The process is gone, and with it what its other lanes were doing.
            process.take_turn = _go_on
            del lanes[number]
            _end(lanes.values(), death)
            raise
        finally:
            process.take_turn = turn
        if errors:
            raise errors[0]
        return [results[n] for n in range(len(calls))]

    def close(self) -> None:
        """Leave nothing running."""


class _Turn:
    def __await__(self) -> Generator[None, None, None]:
        yield


def _let_others_run() -> None:
    await_only(_Turn())


def _go_on() -> None:
    """Let no other lane run."""


def _end(lanes: Sequence[Coroutine[Any, Any, Any]], death: BaseException) -> None:
    for lane in lanes:
        try:
            lane.throw(death)
        except BaseException as error:
            if error is not death:
                raise
