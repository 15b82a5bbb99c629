"""F23 to F28: faults of consumers, and of what they read."""

from __future__ import annotations

import threading
import time
from functools import partial

from confluent_kafka import Consumer

from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.foreign_client import Echo, ForeignClient
from tests.verification.faults.matrix import Fault
from tests.verification.faults.scenarios.members import (
    await_deaths,
    await_members,
    launch_dying,
    stop_consumers,
)
from tests.verification.faults.side import Side

PLACES = (
    # As many as the topic has partitions, so that all get records.
    (("receive", "before"), ("receive", "after"), ("offsets", "before")),
    # Most of these need no partition: they process the inbox rows of the others.
    (
        ("attempt", "before"),
        ("attempt", "after"),
        ("handler", "before"),
        ("effect", "before"),
        ("effect", "after"),
        ("offsets", "after"),
    ),
)
ATTEMPTS = 4
"""Attempts of a handler downstream."""
GUST_WITHIN_S = 30.0


def killed_on_the_way(banks: Banks) -> None:
    """Consumers die before, in and after the handler, many at a time; others take over."""
    banks.open(but="downstream consume")
    for places in PLACES:
        dying = launch_dying(banks.downstream, places)
        await_members(banks, banks.downstream, dying)
        banks.write(40)
        await_deaths(banks, dying)
    banks.downstream.consume()
    banks.drain()
    _kill_by_one_event(banks)


def _kill_by_one_event(banks: Banks) -> None:
    """A handler kills its process at every attempt, until none are left.

    The first death is in a batch, where the failing event is unknown: there is one death more
    than attempts.
    """
    side = banks.downstream
    stop_consumers(side)
    banks.write(1, refused=0)
    always = Failpoint(step="handler", when="before", action="exit", nth=0)
    consumer = Revived(side, BANK_HANDLER_LEASE="1.5", **side.broken_at(always))
    given_up = (
        "SELECT attempts FROM shield_inbox WHERE status = 'MAX_RECONSUMED' "
        "AND last_error LIKE 'the last attempt ended with its process%'"
    )
    banks.until(lambda: consumer.look() or side.rows(given_up), "the event is given up", 90)
    banks.expect(
        consumer.deaths == ATTEMPTS + 1,
        f"it killed {consumer.deaths} processes, not {ATTEMPTS + 1}",
    )
    banks.expect(side.rows(given_up)[-1].attempts == ATTEMPTS, "every attempt was counted")


class Revived:
    """A consumer that is restarted whenever it dies, as by a supervisor."""

    def __init__(self, side: Side, **environment: str) -> None:
        self.deaths = 0
        self._start = partial(side.launch, "consume", side.group, **environment)
        self._worker = self._start()

    def look(self) -> None:
        """Count the death and restart the consumer, if it has died."""
        if not self._worker.is_running:
            self.deaths += 1
            self._worker = self._start()


def too_slow_and_restless(banks: Banks) -> None:
    """Handlers outlast their lease and the poll interval; then members come and go."""
    banks.open(but="downstream consume")
    _outlast_the_lease(banks)
    _outlast_the_poll_interval(banks)
    for _ in range(2):
        banks.downstream.consume()
    clients = banks.begin_writing(100, pause=0.1)
    storms = [Storm(banks) for _ in range(2)]
    for storm in storms:
        storm.join(120)
    clients.finish()
    seen = sum(storm.assigned for storm in storms)
    banks.expect(seen >= len(storms) * Storm.GUSTS, f"only {seen} rebalances were seen")


def _outlast_the_lease(banks: Banks) -> None:
    """One stands still after its attempt was counted, then another one in its handler."""
    side = banks.downstream
    banks.write(40)
    for step, when in (("attempt", "after"), ("handler", "before")):
        side.mark.unlink(missing_ok=True)
        point = Failpoint(step=step, when=when, action="freeze")
        side.launch("consume", side.group, BANK_HANDLER_LEASE="1", **side.broken_at(point))
        # The only running consumer, so that it stands still in its own attempt.
        banks.struck(side, within=60)
    side.consume(BANK_HANDLER_LEASE="1")
    banks.outlive_standstill(side, within=30)
    banks.until(
        lambda: banks.logged(r"(was|were) taken over before"),
        "an attempt that was too late finds itself overtaken",
    )
    stop_consumers(side)


def _outlast_the_poll_interval(banks: Banks) -> None:
    """The handlers of one pass take so long that the group removes the consumer."""
    side = banks.downstream
    side.consume(BANK_HANDLER_TAKES="0.2", BANK_POLL_INTERVAL="2", SHIELDTX_LOG_LEVEL="debug")
    banks.write(30)
    banks.until(
        lambda: banks.logged("poll timeout has expired"), "a pass outlasts the poll interval", 60
    )
    banks.drain()
    stop_consumers(side)


class Storm(threading.Thread):
    """A member that joins a group and leaves it again, over and over, and handles nothing."""

    GUSTS = 6

    def __init__(self, banks: Banks) -> None:
        super().__init__(daemon=True)
        self.assigned = 0
        self._banks = banks
        self.start()

    def run(self) -> None:
        """Join and leave."""
        for _ in range(self.GUSTS):
            self._gust()

    def _gust(self) -> None:
        before = self.assigned
        member = Consumer(
            {
                "bootstrap.servers": self._banks.kafka.bootstrap,
                "group.id": self._banks.downstream.group,
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
            }
        )
        member.subscribe(self._banks.topics[:1], on_assign=self._note)
        deadline = time.monotonic() + GUST_WITHIN_S
        try:
            while self.assigned == before and time.monotonic() < deadline:
                member.poll(0.1)
        finally:
            member.close()

    def _note(self, _member: object, _partitions: object) -> None:
        self.assigned += 1


def delivered_to_two(banks: Banks) -> None:
    """Every record appears again in another partition, for workers slower than their leases."""
    banks.open(but="downstream consume")
    slow = {"BANK_HANDLER_TAKES": "0.25", "BANK_HANDLER_LEASE": "0.2"}
    consumers = [banks.downstream.consume(**slow) for _ in range(3)]
    foreign_client = ForeignClient(banks.kafka.bootstrap)
    topic = banks.topics[0]
    banks.until(
        lambda: (
            [len(m) for m in foreign_client.members(banks.downstream.group)] == [1] * len(consumers)
        ),
        "each worker has a partition",
    )
    with Echo(banks.kafka.bootstrap, topic) as echo:
        banks.write(60, pause=0.05)
        banks.drain()
        written = banks.upstream.one("SELECT count(*) FROM transfer")
        banks.until(lambda: len(echo.copies) >= written, "every record has its copy")
    ends = foreign_client.ends(topic)
    banks.until(
        lambda: foreign_client.has_read(banks.downstream.group, topic, ends), "all copies are read"
    )
    places = {(copy.partition, copy.offset) for copy in echo.copies}
    came = banks.downstream.rows("SELECT record_partition, record_offset FROM shield_inbox")
    first = sum(tuple(place) in places for place in came)
    banks.expect(0 < first < len(came), f"{first} of {len(came)} events came first as a copy")


def read_once_more(banks: Banks) -> None:
    """The offsets of both groups return to the beginning, after all events were applied."""
    banks.open()
    banks.write(100, refused=0.3)
    banks.drain()
    foreign_client = ForeignClient(banks.kafka.bootstrap)
    groups = list(zip(reversed(banks.sides), banks.topics, strict=True))
    attempts = [_attempts(side) for side, _ in groups]
    for side, topic in groups:
        stop_consumers(side)
        banks.expect(
            sum(foreign_client.offsets(side.group, topic).values()) > 0, "a group had read"
        )
        foreign_client.move(side.group, topic, dict.fromkeys(foreign_client.ends(topic), 0))
        side.consume()
    for side, topic in groups:
        again = partial(foreign_client.has_read, side.group, topic, foreign_client.ends(topic))
        banks.until(again, f"{side.group} has read everything once more")
    banks.expect([_attempts(side) for side, _ in groups] == attempts, "no event had another turn")
    banks.write(20, refused=0.3)


def _attempts(side: Side) -> int:
    return int(
        side.one(
            "SELECT count(*) FROM bank_history WHERE place = 'shield_inbox' "
            "AND after = 'PROCESSING'"
        )
    )


def a_key_that_waits(banks: Banks) -> None:
    """An event waits an hour for its retry: its key is blocked, all others continue."""
    banks.open(but="downstream consume")
    side = banks.downstream
    hiccup = Failpoint(step="handler", when="before", action="raise")
    side.consume(BANK_BACK_OFF="3600", **side.broken_at(hiccup))
    banks.write(1, refused=0)
    banks.struck(side)
    waiting = "SELECT event_id, key FROM shield_inbox WHERE attempts = 1 AND lease_token IS NULL"
    banks.until(lambda: side.rows(waiting), "the event waits for its retry")
    [(event, key)] = side.rows(waiting)
    # Refused at once, since retries would wait as long as the first event.
    banks.write(150, refused=0.2, ways=("at once",))
    banks.until(lambda: side.one("SELECT count(*) FROM shield_inbox") == 151, "all are received")
    of_others = "SELECT count(*) FROM shield_inbox WHERE settled_at IS NULL AND key <> :key"
    banks.until(lambda: not side.one(of_others, key=key), "the other keys go on")
    behind = side.rows(
        "SELECT status, attempts FROM shield_inbox WHERE key = :key AND event_id <> :event",
        key=key,
        event=event,
    )
    banks.expect(behind, "some events wait for the first of their key")
    banks.expect(set(map(tuple, behind)) <= {("INIT", 0)}, f"its key does not wait: {behind}")
    side.execute("UPDATE shield_inbox SET due_at = now() WHERE event_id = :event", event=event)


FAULTS = (
    Fault(id="F23", name="consumer killed before, in and after the handler", run=killed_on_the_way),
    Fault(
        id="F24",
        name="handlers over lease and poll interval, rebalance storm",
        run=too_slow_and_restless,
    ),
    Fault(id="F25", name="the same event delivered to two workers", run=delivered_to_two),
    Fault(id="F26", name="offsets reset with everything applied", run=read_once_more),
    Fault(id="F28", name="the next event of a key that waits for a retry", run=a_key_that_waits),
)
