"""Failpoints: named positions between two steps at which a process of the tests breaks.

They are wrapped around the ports of the services, here in the tests. The product contains no trace
of them, so they cost nothing there and cannot be switched on by accident.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from shieldtx.ports.broker import Delivery, DeliveryOutcome, Record
from shieldtx.ports.inbox import Attempt, IncomingEvent, Parked, Receipt

ENVIRONMENT = "BANK_FAILPOINT"

STEPS = {
    "write": "the INSERT of the event into the outbox",
    "commit": "the COMMIT of the business transaction",
    "prepare": "the half message is stored",
    "local": "the COMMIT of a local transaction that has a half message",
    "outcome": "the outcome of the local transaction is reported: commit or rollback call",
    "renew": "the relay's shard leases are renewed",
    "claim": "rows are claimed",
    "publish": "records are sent and acknowledged",
    "settle": "the outcomes of a batch are written",
    "fail": "a row becomes FAILED and its local rollback runs",
    "claim-checks": "half messages are claimed and their checks counted; then the checks run",
    "store-results": "the result of a check is written",
    "poll": "records are read",
    "decode": "a record is decoded",
    "receive": "records are inserted into the inbox",
    "offsets": "offsets are committed",
    "attempt": "an attempt is counted",
    "effect": "the effect's transaction begins; after: it is committed",
    "handler": "the handler runs, its writes not committed",
    "postpone": "the next attempt of a failed event is scheduled",
    "give-up": "MAX_RECONSUMED or DEAD is written",
    "rollback": "the ROLLBACK event is inserted into the outbox, in the transaction that gives up",
    "compensation": "a compensation is noted, in its own transaction",
    "replay": "an operator replays a dead letter",
    "retention": "settled rows are purged",
}
"""Every step that can be broken: before the step, or after it."""

ACTIONS = {
    "exit": "the process is killed, from the inside",
    "raise": "the step fails; after it: its answer is lost at once",
    "freeze": "the process stands still for longer than its leases",
    "interrupt": "the process is asked to end by SystemExit, from the inside",
    "drop": "it stands still likewise, and the answer never comes",
}

INTERRUPTED = 7
"""The exit status of a process that a failpoint has interrupted."""

LONGEST_STANDSTILL_S = 60
STANDSTILLS = {"freeze", "drop"}


class Struck(Exception):
    """A failpoint of the tests failed this step, or dropped its answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failpoint:
    """Break at the `nth` time (0: always) that a process is `before` or `after` a step."""

    step: str
    when: str
    action: str
    nth: int = 1

    def __post_init__(self) -> None:
        if self.step not in STEPS or self.when not in {"before", "after"}:
            raise ValueError(f"no such failpoint: {self.when} {self.step}")
        if self.action not in ACTIONS:
            raise ValueError(f"no such action: {self.action}")

    def __str__(self) -> str:
        return f"{self.step}.{self.when}:{self.action}:{self.nth}"

    @classmethod
    def parse(cls, text: str) -> Failpoint:
        """Parse the output of `str`."""
        place, action, nth = text.split(":")
        step, _, when = place.partition(".")
        return cls(step=step, when=when, action=action, nth=int(nth))


@dataclass(kw_only=True, slots=True)
class Breaker:
    """The failpoint of a process of the tests, if any."""

    failpoint: Failpoint | None = None
    mark: Path | None = None
    """The file that a scenario waits for: it is written when the failpoint strikes."""
    wake: Path | None = None
    """The file that ends a standstill."""
    _reached: Counter[tuple[str, str]] = field(default_factory=Counter)

    @classmethod
    def from_env(cls) -> Breaker:
        """Make a breaker from the environment: `BANK_FAILPOINT=claim.after:exit:1`."""
        armed = os.environ.get(ENVIRONMENT)
        if not armed:
            return cls()
        return cls(
            failpoint=Failpoint.parse(armed),
            mark=Path(os.environ["BANK_MARK"]),
            wake=Path(os.environ["BANK_WAKE"]),
        )

    def reach(self, step: str, when: str) -> None:
        """Reach a position; the process may end there."""
        point = self.failpoint
        if point is None or (point.step, point.when) != (step, when):
            return
        self._reached[step, when] += 1
        if point.nth not in {0, self._reached[step, when]}:
            return
        if self.mark is not None:
            self.mark.touch()
        if point.action == "exit":
            os.kill(os.getpid(), signal.SIGKILL)
        if point.action in STANDSTILLS:
            stand_still(self.wake)
        if point.action == "interrupt":
            raise SystemExit(INTERRUPTED)
        if point.action in {"raise", "drop"}:
            raise Struck(f"{when} {step}")

    @contextmanager
    def around(self, step: str) -> Iterator[None]:
        """Reach both positions of a step."""
        self.reach(step, "before")
        yield
        self.reach(step, "after")


def stand_still(wake: Path) -> None:
    """Stop this process, all its threads, until a file exists; for at most a minute."""
    pid = os.getpid()
    look = f"test -e {wake} && break; sleep 0.1"
    awake = f"for n in $(seq {10 * LONGEST_STANDSTILL_S}); do {look}; done; kill -CONT {pid}"
    subprocess.Popen(["sh", "-c", awake])
    ends = time.monotonic() + LONGEST_STANDSTILL_S
    os.kill(pid, signal.SIGSTOP)
    # Another thread may take the signal: until then this thread waits here.
    while not wake.exists() and time.monotonic() < ends:
        time.sleep(0.01)


class Breakable:
    """A port whose methods are steps; other attributes are those of the real port."""

    def __init__(self, real: Any, breaker: Breaker, steps: Mapping[str, str]) -> None:
        self._real = real
        self._breaker = breaker
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        step = self._steps.get(name)
        return value if step is None else partial(self._broken, step, value)

    def _broken(self, step: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self._breaker.reach(step, "before")
        result = method(*args, **named)
        # A query with an empty result is not a step of an event.
        if step not in POLLS or getattr(result, "events", result):
            self._breaker.reach(step, "after")
        return result


class BreakablePublisher(Breakable):
    """A publisher that never raises, as its port requires: a lost answer means unconfirmed."""

    def publish(
        self, records: Sequence[Record], *, timeout: float, with_offsets: bool = False
    ) -> Sequence[Delivery]:
        try:
            self._breaker.reach("publish", "before")
        except Struck as struck:
            return [Delivery(outcome=DeliveryOutcome.UNSENT, reason=str(struck))] * len(records)
        deliveries = self._real.publish(records, timeout=timeout, with_offsets=with_offsets)
        try:
            self._breaker.reach("publish", "after")
        except Struck as struck:
            return [Delivery(outcome=DeliveryOutcome.UNCONFIRMED, reason=str(struck))] * len(
                records
            )
        return deliveries


class BreakableInboxStore(Breakable):
    """An inbox whose transactions can also break inside."""

    def receive(
        self, group: str, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]
    ) -> Receipt:
        """Store a batch; this also counts the first attempts of most events."""
        with self._breaker.around("receive"):
            if any(arrival.lease for arrival in arrivals):
                self._breaker.reach("attempt", "before")
            receipt = self._real.receive(group, arrivals, parked)
            if receipt.started:
                self._breaker.reach("attempt", "after")
            return receipt

    @contextmanager
    def effect(self, attempt: Attempt) -> Iterator[Session]:
        with self._breaker.around("effect"), self._real.effect(attempt) as session:
            yield session

    @contextmanager
    def effects(self, attempts: Sequence[Attempt]) -> Iterator[Session]:
        with self._breaker.around("effect"), self._real.effects(attempts) as session:
            yield session

    def give_up(
        self,
        attempt: Attempt,
        *,
        reason: str,
        in_transaction: Callable[[Session], Any] | None,
        parked: bool = False,
    ) -> bool:
        def broken(session: Session) -> None:
            with self._breaker.around("rollback"):
                in_transaction(session)

        with self._breaker.around("give-up"):
            return self._real.give_up(
                attempt,
                reason=reason,
                in_transaction=None if in_transaction is None else broken,
                parked=parked,
            )

    def refuse(self, session: Session, attempt: Attempt, *, reason: str) -> None:
        """Settle a refused event of a batch; its ROLLBACK event is in the same transaction."""
        with self._breaker.around("give-up"), self._breaker.around("rollback"):
            self._real.refuse(session, attempt, reason=reason)


POLLS = {"claim", "poll", "claim-checks"}
RELAY_STEPS = {"claim": "claim", "settle": "settle", "fail": "fail"}
HALF_STEPS = {
    "prepare": "prepare",
    "resolve": "outcome",
    "claim_checks": "claim-checks",
    "answer": "store-results",
}
LEASE_STEPS = {"renew": "renew"}
SUBSCRIBER_STEPS = {"poll": "poll", "commit": "offsets"}
INBOX_STEPS = {
    "start_attempt": "attempt",
    "postpone": "postpone",
    "mark_compensated": "compensation",
}
WRITER_STEPS = {"insert": "write"}
PURGE_STEPS = {"purge_outbox": "retention", "purge_inbox": "retention"}
REPLAY_STEPS = {"replay": "replay"}
