"""The processes of the simulation: each may fail, die or be suspended at every call of a port."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shieldtx.errors import BrokerUnavailable, ConfigurationError
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import Attempt
from shieldtx.ports.relay import ShardLeases
from tests.verification.simulation.broker import Member, MemorySubscriber, Trouble
from tests.verification.simulation.database import DatabaseError, Transaction
from tests.verification.simulation.fault_schedule import Fault

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

S = TypeVar("S")


class Killed(BaseException):
    """kill -9: nothing in the process may catch it."""


class ErrorInside(RuntimeError):
    """The process gets no thread, no memory, or has an internal error."""


class Overdue(DatabaseError):
    """No answer in time; the statement may still be on its way to the server."""


class Process(Generic[S]):
    """A relay, a consumer or a retention, recreated after each death.

    Its own clock runs at its own `rate`; its wall clock is wrong by `skew` seconds.
    """

    def __init__(
        self,
        world: World,
        name: str,
        build: Callable[[Process[S]], S],
        *,
        rate: float = 1.0,
        skew: float = 0.0,
    ) -> None:
        self.world = world
        self._name = name
        self._build = build
        self._rate = rate
        self._skew = skew
        self._life = 0
        self._service: S | None = None
        self.threads = 0
        """The number of threads that are running, or suspended in the middle of a pass."""
        self.is_doomed = False
        self.member: Member | None = None
        self.take_turn: Callable[[], None] = lambda: None
        """Lets other lanes of a consumer run, before and after each call of a port."""

    @property
    def name(self) -> str:
        """Return the name, which is unique among all incarnations of this process."""
        return f"{self._name}.{self._life}"

    @property
    def exists(self) -> bool:
        """Whether the process was started and has not ended; a suspended one has not."""
        return self._service is not None or self.busy

    @property
    def busy(self) -> bool:
        return self.threads > 0

    @property
    def service(self) -> S:
        if self._service is None:
            self._life += 1
            self._service = self._build(self)
        return self._service

    def __str__(self) -> str:
        return self.name

    def clock(self) -> float:
        return self.world.clock.now * self._rate

    def wall_clock(self) -> float:
        return self.world.clock.now + self._skew

    def bury(self) -> None:
        """Drop the process's objects; a dead member keeps its partitions for a while."""
        self._service = None
        self.is_doomed = False
        if self.member is not None:
            self.world.dead.append(self.member)
            self.member = None

    def do(self, what: str, call: Callable[[], Any]) -> Any:
        """Let the process do something; an exception ends its pass, or the process."""
        world = self.world
        self.threads += 1
        world.running.append(self)
        try:
            done = call()
        except Killed:
            world.say("{} is killed", self)
            # Where another of its threads is suspended, the process ends with that thread.
            self.is_doomed = self.threads > 1
            if not self.is_doomed:
                self.bury()
        except (DatabaseError, BrokerUnavailable, ConfigurationError, ErrorInside) as error:
            world.say("{} {}: {!r}", self, what, error)
        else:
            world.say("{} {}: {}", self, what, done)
            return done
        finally:
            world.running.pop()
            self.threads -= 1
        return None

    # --- possible faults --------------------------------------------------------------------------

    def before(self, place: str) -> None:
        self.take_turn()
        self.world.visit(self, place, answered=False)

    def after(self, place: str) -> None:
        self.world.visit(self, place, answered=True)
        self.take_turn()

    def die(self) -> None:
        raise Killed

    def trouble(self, records: int) -> Trouble | None:
        return self.world.trouble(self, records)

    def stopped_before_the_check(self) -> bool:
        return self.world.schedule.chance(0.5)

    def may_fail_inside(self) -> None:
        if not self.world.is_calm and self.world.schedule.error_inside():
            raise ErrorInside

    def may_fail_at_a_call(self, place: str) -> None:
        """Fail before or after a call in a way that no port declares."""
        if not self.world.is_calm and self.world.schedule.error_at_a_call():
            self.world.say("{}: an error of its own at {!r}", self, place)
            raise ErrorInside

    def error_of(self, fault: Fault, place: str, *, answered: bool) -> BaseException | None:
        """Return the error of a fault for the process; None: nothing."""
        if fault is Fault.KILL:
            return Killed()
        # A publisher never raises, and the results of a poll have arrived already.
        if place == "publish" or (place == "poll" and answered):
            return None
        if place in _SUBSCRIBER:
            return BrokerUnavailable("no answer from the broker")
        if fault is Fault.LATE and not answered:
            return Overdue("could not receive data from server: connection timed out")
        return DatabaseError("server closed the connection unexpectedly")


_SUBSCRIBER = ("poll", "commit", "pause", "has_caught_up", "close")

_NEVER_FAIL_AFTERWARDS = ("poll",)
"""Calls whose result the process already has: nothing happens in between."""

_SINGLE_STATEMENTS = ("claim", "start_attempt")
"""Calls that the server may still execute after the process gave up waiting.

A transaction of several steps lacks its rest, and rolls back.
"""


class Interrupted:
    """A port whose every call may go wrong, before it and after it."""

    def __init__(self, process: Process[Any], port: Any) -> None:
        self._process = process
        self._port = port

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Make the call at its first use."""
        call = getattr(self._port, name)
        world, before, after = self._process.world, self._process.before, self._process.after

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            if world.is_calm:
                return call(*args, **kwargs)
            try:
                before(name)
            except Overdue:
                if name in _SINGLE_STATEMENTS:
                    world.overdue.append(partial(call, *args, **kwargs))
                raise
            self._process.may_fail_at_a_call(name)
            answer = call(*args, **kwargs)
            after(name)
            if name not in _NEVER_FAIL_AFTERWARDS:
                self._process.may_fail_at_a_call(name)
            return answer

        setattr(self, name, interrupted)
        return interrupted


class Beside:
    """Concurrent work of a process, executed before or after other work, in its order."""

    def __init__(self, process: Process[Any]) -> None:
        self._process = process
        self._promises: deque[Promise] = deque()

    def submit(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Promise:
        self._process.may_fail_inside()
        promise = Promise(self, partial(call, *args, **kwargs))
        self._promises.append(promise)
        if self._process.world.schedule.chance(0.5):
            self.keep(promise)
        return promise

    def keep(self, promise: Promise) -> None:
        """Make the calls up to this one."""
        while not promise.is_kept:
            self._promises.popleft().make()

    def shutdown(self, *, wait: bool = True) -> None:
        """Leave nothing running."""


class Promise:
    """A call that is made at the latest when its result is requested."""

    def __init__(self, beside: Beside, call: Callable[[], Any]) -> None:
        self._beside = beside
        self._call = call
        self._result: Any = None
        self._error: Exception | None = None
        self.is_kept = False

    def make(self) -> None:
        self.is_kept = True
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001  raised where the result is asked for
            self._error = error

    def exception(self) -> Exception | None:
        self._beside.keep(self)
        return self._error

    def result(self) -> Any:
        self._beside.keep(self)
        if self._error is not None:
            raise self._error
        return self._result


class InterruptedLeases(Interrupted):
    """The leases of a process that renews them in a thread of its own."""

    def renew(self, *, relay: str, lease: timedelta) -> ShardLeases:
        process = self._process
        process.before("renew")
        process.may_fail_at_a_call("renew")
        holding: ShardLeases = self._port.renew(relay=relay, lease=lease)
        process.after("renew")
        process.may_fail_at_a_call("renew")
        if process.threads > 1:
            # No shard is released before the end of the pass, for which the thread would wait here.
            return ShardLeases(shards=holding.shards, relays=holding.relays, surplus=frozenset())
        return holding


class InterruptedInbox(Interrupted):
    """The inbox, whose effect transaction may also go wrong at its commit."""

    def effects(self, attempts: Sequence[Attempt]) -> AbstractContextManager[Transaction]:
        return self._interrupted("effects", partial(self._port.effects, attempts))

    def effect(self, attempt: Attempt) -> AbstractContextManager[Transaction]:
        return self._interrupted("effect", partial(self._port.effect, attempt))

    @contextmanager
    def _interrupted(self, name: str, opening: Callable[[], Any]) -> Iterator[Transaction]:
        process = self._process
        process.before(name)
        process.may_fail_at_a_call(name)
        with opening() as transaction:
            process.after(name)
            yield transaction
            process.before(f"commit of the {name}")
            process.may_fail_at_a_call(f"commit of the {name}")
        process.after(f"commit of the {name}")
        process.may_fail_at_a_call(f"commit of the {name}")


class InterruptedSubscriber(Interrupted):
    """A subscriber; its process is known as a member of the group."""

    def __init__(self, process: Process[Any], port: MemorySubscriber) -> None:
        super().__init__(process, port)
        process.member = port.member

    def rewind(self, records: Sequence[ReceivedRecord]) -> None:
        self._process.may_fail_inside()
        self._port.rewind(records)
        self._process.may_fail_at_a_call("rewind")
