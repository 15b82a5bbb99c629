"""The scenario of the demo: two services run, a relay and a consumer are killed half-way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from examples.retail.display import Display
from examples.retail.fleet import Fleet
from examples.retail.progress import Progress, Watch, watching
from examples.retail.stage import SERVICES, Stage
from examples.retail.topics import following, lag

COMMIT_TOPIC: Final = "orders.placed.commit"
ROLLBACK_TOPIC: Final = "orders.placed.rollback"

LOOK_EVERY_S: Final = 0.25
NOTHING_MOVES_S: Final = 60.0

RELAY: Final = "orders relay 1"
CONSUMER: Final = "stock consumer"
"""The processes that are killed."""

SENT_UNMARKED_S: Final = 30.0
"""How long the kill waits for a moment in which the relay has sent events and not marked them."""
CLAIM_HELD_S: Final = 2.0
"""How long the relay is kept from marking the events of a claim: less than its lease."""
STEP_S: Final = 0.002
"""The pause between two looks."""

Look: TypeAlias = Callable[[Progress, Watch], bool]
"""Acts on the progress, and returns whether all its actions are done."""


def play(stage: Stage, fleet: Fleet, display: Display, baskets: int) -> None:
    """Take all baskets through, and stop when nothing is left to do."""
    start_workers(fleet)
    # Before the first order: a few hundred are on the topic while a client connects.
    with following(stage.kafka.bootstrap, COMMIT_TOPIC) as on_topic:
        half_way = HalfWay(fleet, display, baskets, on_topic)
        fleet.module("checkout", "orders", "examples.retail.checkout", "--baskets", str(baskets))
        _work_off(stage, fleet, display, baskets, look=half_way.look)


def catch_up(stage: Stage, fleet: Fleet, display: Display, baskets: int) -> None:
    """Finish the open work of the given number of baskets, then stop."""
    start_workers(fleet)
    _work_off(stage, fleet, display, baskets, look=lambda _progress, _watch: True)


def open_services(stage: Stage, fleet: Fleet, baskets: int) -> None:
    """Create the tables of shieldtx and of the services, and the topics."""
    for service in SERVICES:
        fleet.shieldtx(f"{service} migration", service, "db", "upgrade")
    for service in SERVICES:
        fleet.finish(f"{service} migration")
        arguments = (service, "--baskets", str(baskets))
        fleet.module(f"{service} opening", service, "examples.retail.opening", *arguments)
    stage.kafka_started.result()
    fleet.shieldtx("topics", "orders", "topics", "create")
    fleet.finish("topics", *(f"{service} opening" for service in SERVICES))


def start_workers(fleet: Fleet) -> None:
    """Start every relay and consumer."""
    for relay in (RELAY, "orders relay 2"):
        fleet.shieldtx(relay, "orders", "relay")
    fleet.shieldtx(CONSUMER, "stock", "consume", "stock")
    # Rollback events of stock pass through an outbox, too.
    fleet.shieldtx("stock relay", "stock", "relay")
    fleet.shieldtx("orders consumer", "orders", "consume", "orders")


class HalfWay:
    """Kills a relay and a consumer half-way, starts them again, and watches the takeover.

    The relay dies after it has sent a batch, and before it has marked it, if that can be seen: then
    another relay sends the batch again.
    """

    def __init__(
        self, fleet: Fleet, display: Display, baskets: int, on_topic: Callable[[], frozenset[int]]
    ) -> None:
        """Kill when half of the baskets are written; `on_topic` returns those on the topic."""
        self._fleet = fleet
        self._display = display
        self._baskets = baskets
        self._on_topic = on_topic
        self._killed_at: float | None = None
        self._dead_relay = ""

    def look(self, progress: Progress, watch: Watch) -> bool:
        """Take the next action, if it is due.

        Return whether the takeover is complete: other relays own the shards of the dead relay.
        """
        shards = watch.shards()
        if self._killed_at is None:
            self._on_topic()  # read the records so far: later ones come at once then
            if progress.written >= self._baskets / 2 and progress.applied > 0 and len(shards) > 1:
                self._kill(shards, watch)
        elif self._dead_relay and self._dead_relay not in shards:
            seconds = time.monotonic() - self._killed_at
            self._dead_relay = ""
            self._display.say(f"its shards were taken over after {seconds:.1f} s")
        return self._killed_at is not None and not self._dead_relay

    def _kill_after_sending(self, relay: int, watch: Watch) -> int:
        """Kill the relay of a process id; return how many events it has sent and not marked.

        That is 0 if it claims and sends nothing for a while.
        """
        deadline = time.monotonic() + SENT_UNMARKED_S
        while time.monotonic() < deadline:
            with watch.claims_held(relay) as claimed:
                if claimed and self._are_sent(claimed):
                    self._fleet.kill(RELAY)
                    watch.disconnect(RELAY)
                    return len(claimed & self._on_topic())
            time.sleep(STEP_S)
        self._fleet.kill(RELAY)
        return 0

    def _are_sent(self, claimed: frozenset[int]) -> bool:
        """Wait until some of the claimed events are on the topic; return False if none comes."""
        deadline = time.monotonic() + CLAIM_HELD_S
        while not claimed & self._on_topic():
            if time.monotonic() > deadline:
                return False
            time.sleep(STEP_S)
        return True

    def _kill(self, shards: Mapping[str, int], watch: Watch) -> None:
        relay = self._fleet.pid(RELAY)
        again = self._kill_after_sending(relay, watch)
        consumer = self._fleet.kill(CONSUMER)
        self._killed_at = time.monotonic()
        # A relay's name contains its process id.
        self._dead_relay = next(owner for owner in shards if f"-{relay}-" in owner)
        self._display.say(
            f"[bold red]SIGKILL[/] to {RELAY} (pid {relay}), which holds "
            f"{shards[self._dead_relay]} shards, and to the {CONSUMER} (pid {consumer})"
        )
        if again:
            self._display.say(
                f"the relay had sent {again} events and not marked them: they come to the topic "
                "once more"
            )
        self._fleet.shieldtx(RELAY, "orders", "relay")
        self._fleet.shieldtx(CONSUMER, "stock", "consume", "stock")
        self._display.say(
            "both start again, and take over at once what the dead ones held: they run on the same "
            "host. Elsewhere a relay waits for the lease, and a consumer for the session in Kafka"
        )


def _work_off(stage: Stage, fleet: Fleet, display: Display, baskets: int, *, look: Look) -> None:
    """Wait until no work is left, and stop all processes.

    Also stop when work is left but nothing moves any more: the audit reports the losses.
    """
    last, moved_at = Progress(), time.monotonic()
    with display, watching(stage.url("orders"), stage.url("stock")) as watch:
        while True:
            fleet.check()
            progress = watch.progress()
            is_over = look(progress, watch)
            display.show(progress, watch.shards())
            if progress != last:
                last, moved_at = progress, time.monotonic()
            if is_over and progress.written >= baskets and _is_drained(stage, watch):
                break
            if time.monotonic() - moved_at > NOTHING_MOVES_S:
                display.say(f"[bold red]nothing has moved for {NOTHING_MOVES_S:.0f} s[/]")
                break
            time.sleep(LOOK_EVERY_S)
        display.sum_up(progress)
    fleet.stop()
    display.say("all processes were stopped with SIGTERM")


def _is_drained(stage: Stage, watch: Watch) -> bool:
    """Return whether no work is left, in the tables and on the topics, and nothing moves any more.

    Lost events do not count as work: the audit finds them.
    """
    before = watch.progress()
    return (
        not before.open_rows
        and lag(stage.kafka.bootstrap, "stock", COMMIT_TOPIC) == 0
        and lag(stage.kafka.bootstrap, "orders", ROLLBACK_TOPIC) == 0
        and watch.progress() == before
    )
