"""F9 to F13: relays die, stand still, race, and disagree about the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from signal import SIGKILL
from types import MappingProxyType

from tests.verification.faults import clocks
from tests.verification.faults.banks import Banks
from tests.verification.faults.clocks import HOUR
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.matrix import Fault
from tests.verification.faults.proxy import TO_CLIENT
from tests.verification.faults.side import Side
from tests.verification.faults.workers import Worker
from tests.verification.faults.world import SHARDS, own_kafka

HASTY = MappingProxyType({"SHIELDTX_RELAY_LEASE": "1", "SHIELDTX_RELAY_SEND_TIMEOUT": "0.7"})
"""Settings of relays that die soon, and whose shards should not wait for long."""

LEASE_S = 2.0
POLL_S = 0.1
UNCONFIRMED = "SELECT count(*) FROM shield_outbox WHERE unconfirmed"

UNHURRIED = MappingProxyType({"SHIELDTX_RELAY_LEASE": "5", "SHIELDTX_RELAY_SEND_TIMEOUT": "3.5"})
"""Settings of relays that have to keep their shards on a slow machine, too."""

PATIENT = MappingProxyType({"SHIELDTX_RELAY_LEASE": "7", "SHIELDTX_RELAY_SEND_TIMEOUT": "5.5"})
"""Settings of a relay that still has to connect and send its rows after a standstill."""

STEPS_OF_A_PASS = (
    ("claim", "after"),  # claimed
    ("publish", "before"),
    ("publish", "after"),  # acknowledged, not marked
    ("settle", "before"),
    ("settle", "after"),
)


def killed_at_each_step(banks: Banks) -> None:
    """A relay dies at each step of its pass; the next one takes its shards over, and dies, too."""
    banks.open(but="upstream relay")
    banks.write(100)
    for step, when in STEPS_OF_A_PASS:
        relay = launch_broken(banks, Failpoint(step=step, when=when, action="exit"), **HASTY)
        ended = relay.join(10) and relay.exit_status == -SIGKILL
        banks.expect(ended, f"the relay is killed {when} {step}")
    banks.upstream.relay()


def zombies(banks: Banks) -> None:
    """Relays are stopped in the middle of a pass, and resume when another has done their work.

    Each takes over from its predecessor. On resumption the first has sent nothing yet, the second
    sends records that the topic already has, and the third has sent them and settles.
    """
    up = banks.upstream
    banks.open(but="upstream relay")
    banks.write(80)
    # In the second pass, when the relay is connected; the relay that still has to send has time to.
    places = (("claim", "after", {}), ("publish", "before", PATIENT), ("publish", "after", {}))
    stopped = [
        launch_broken(
            banks,
            Failpoint(step=step, when=when, action="freeze", nth=2),
            SHIELDTX_RELAY_BATCH_SIZE="10",
            **settings,
        )
        for step, when, settings in places
    ]
    up.relay()
    banks.drain()
    records = len(banks.records())
    up.wake.touch()
    too_late = "action=events_taken_over"
    for zombie in stopped:
        banks.until(partial(zombie.has_logged, too_late), "the zombie is fenced")
    banks.until(lambda: len(banks.records()) > records, "a zombie publishes once more")
    settled = (
        "SELECT count(*) - count(DISTINCT id) FROM bank_history "
        "WHERE place = 'shield_outbox' AND after = 'PROCESSED'"
    )
    banks.expect(up.one(settled) == 0, "no zombie settles what another relay has settled")
    banks.until(lambda: len(owners(up)) == 4, "the zombies take part again")
    banks.write(40)


def race(banks: Banks) -> None:
    """Four relays race for the same shards, while one after the other dies or leaves."""
    up = banks.upstream
    banks.open(but="upstream relay")
    relays = [up.launch("relay") for _ in range(4)]
    clients = banks.begin_writing(200, pause=0.1)
    for n, sent in enumerate((20, 60, 100, 140)):
        banks.until(partial(_has_sent, up, sent), f"{sent} events go out")
        goes = relays.pop(banks.chance.randrange(4))
        banks.until(partial(has_shards, up, goes), "the relay has shards")
        if n % 2:
            banks.expect(goes.terminate() == 0, "a relay leaves gracefully")
        else:
            goes.kill()
        relays.append(up.launch("relay"))
    clients.finish()
    banks.until(lambda: all(has_shards(up, relay) for relay in relays), "all four have shards")
    banks.write(40)
    # Beyond their first owners: at least one shard of each relay that has left, or it had none.
    banks.expect(epochs(up) >= SHARDS + 4, "shards change hands")


def _has_sent(side: Side, count: int) -> bool:
    return side.outbox().get("PROCESSED", 0) >= count


def wrong_clocks(banks: Banks) -> None:
    """A relay's clock is an hour ahead, another's an hour late, a third is set back two hours."""
    up = banks.upstream
    banks.open(but="upstream relay")
    ahead = up.launch("relay", **UNHURRIED, **clocks.environment(HOUR))
    behind = up.launch("relay", **UNHURRIED, **clocks.environment(-HOUR))
    for relay, hours in ((ahead, 1), (behind, -1)):
        banks.until(partial(has_shards, up, relay), "the relay has shards")
        banks.expect(_clock_is_off(relay, by=hours * HOUR), "its clock is off")
    changes = epochs(up)
    banks.write(60)
    banks.until(lambda: not up.unsettled(), "both publish")
    banks.expect(epochs(up) == changes, "neither takes the other's shards")
    ahead.kill()
    banks.write(20)
    banks.until(
        lambda: not up.unsettled(), "the one with a late clock takes over as soon as any other"
    )
    behind.terminate()
    _set_back(banks)
    _too_far_ahead(banks)
    banks.expect("FAILED" not in up.outbox(), "a clock is not a fault of an event")
    banks.expect(up.one(_TIMES_OFF) == 0, "all times are the database's")
    up.relay()


_TIMES_OFF = """
SELECT count(*) FROM shield_outbox
WHERE settled_at NOT BETWEEN now() - interval '30 min' AND now()
   OR due_at NOT BETWEEN now() - interval '30 min' AND now() + interval '30 min'
"""


def _set_back(banks: Banks) -> None:
    """Set the clock of a relay back while it runs."""
    up = banks.upstream
    clock = banks.folder / "clock"
    clocks.set_off(clock, HOUR)
    relay = up.relay(**clocks.environment_of(clock))
    banks.write(10)
    banks.until(lambda: not up.unsettled(), "it publishes")
    clocks.set_off(clock, -HOUR)
    set_back = r"action=clock_set_back .*step_s=7[12]\d\d"
    banks.until(partial(relay.has_logged, set_back), "it notices")
    banks.write(10)
    banks.until(lambda: not up.unsettled(), "it goes on")
    relay.terminate()


def _too_far_ahead(banks: Banks) -> None:
    """Set a relay's clock further ahead than brokers accept the times of records."""
    relay = banks.upstream.relay(**clocks.environment(3 * HOUR))
    banks.write(10)
    refused = "action=broker_unavailable .*InvalidTimestamp"
    banks.until(partial(relay.has_logged, refused), "the broker refuses its clock")
    relay.terminate()


def _clock_is_off(relay: Worker, *, by: timedelta) -> bool:
    """Return whether the times of a relay's log are off by about this much."""
    logged = datetime.fromisoformat(relay.log.read_text().split()[0])
    return abs(logged - datetime.now(UTC) - by) < HOUR / 2


def late(banks: Banks) -> None:
    """A relay is late for its polls, then its sends block, for longer than timeout and lease."""
    up = banks.upstream
    banks.open(but="upstream relay")
    before = epochs(up)
    relay = up.relay(SHIELDTX_RELAY_LEASE="20")
    _stop_now_and_then(banks, relay)
    taken_once = epochs(up) == before + SHARDS
    banks.expect(has_shards(up, relay) and taken_once, "no shard changes hands")
    relay.terminate()
    relay = up.relay()
    banks.write(10)
    banks.until(lambda: not up.unsettled(), "it is connected")
    with banks.proxy.hold(to={TO_CLIENT}) as hold:
        banks.write(20)
        hold.until_struck()
        # The pass ends at its timeout, before its lease does; the next passes as well.
        banks.until(lambda: up.one(UNCONFIRMED) > 0, "rows without an acknowledgement are released")
        time.sleep(LEASE_S)
    banks.until(lambda: not up.unsettled(), "the acknowledgements come")
    banks.expect(up.one("SELECT max(attempts) FROM shield_outbox") == 1, "no attempt is burnt")
    relay.terminate()
    _freeze_alone(banks)


def _stop_now_and_then(banks: Banks, relay: Worker) -> None:
    """Stop a relay for less than a poll, a few times, and once for longer."""
    up = banks.upstream
    clients = banks.begin_writing(30, pause=0.05)
    for _ in range(10):
        with relay.stopped():
            time.sleep(POLL_S / 2)
        time.sleep(POLL_S / 2)
    clients.finish()
    banks.until(lambda: not up.unsettled(), "what was written goes out")
    with relay.stopped():
        banks.write(20)
        banks.expect(up.outbox().get("INIT") == 20, "a relay that stands still sends nothing")
    banks.until(lambda: not up.unsettled(), "what was written meanwhile goes out")


def _freeze_alone(banks: Banks) -> None:
    """Stop a relay past its lease, with records sent and no other relay to take them over."""
    up = banks.upstream
    banks.write(20)
    relay = launch_broken(banks, Failpoint(step="publish", when="after", action="freeze"))
    banks.until(lambda: not owners(up), "the lease runs out")
    up.wake.touch()
    banks.until(lambda: not up.unsettled(), "the relay settles what it has sent")
    taken_over = relay.has_logged("action=events_taken_over")
    banks.expect(not taken_over, "no other relay has taken it over")


def epochs(side: Side) -> int:
    """Return how often shards changed their owner."""
    return int(side.one("SELECT sum(epoch) FROM shield_shard"))


def owners(side: Side) -> set[str]:
    """Return the relays that own shards."""
    living = "SELECT DISTINCT owner FROM shield_shard WHERE lease_until > now()"
    return {owner for (owner,) in side.rows(living)}


def has_shards(side: Side, relay: Worker) -> bool:
    """Return whether a relay, whose name has its process id, owns shards."""
    return any(f"-{relay.pid}-" in owner for owner in owners(side))


def launch_broken(banks: Banks, point: Failpoint, **environment: str) -> Worker:
    """Start a relay upstream with a failpoint, and wait until it has struck."""
    up = banks.upstream
    up.mark.unlink(missing_ok=True)
    relay = up.launch("relay", **environment, **up.broken_at(point))
    # The relay may have to wait for the shards of a stopped one.
    banks.struck(up, within=60)
    return relay


FAULTS = (
    Fault(id="F9", name="relay killed at each step of its pass", run=killed_at_each_step),
    Fault(id="F10", name="relay suspended past its lease, taken over, resumed", run=zombies),
    Fault(id="F11", name="four relays race while relays come and go", run=race),
    Fault(id="F12", name="wrong clocks of relays", run=wrong_clocks, why_not=clocks.why_not),
    Fault(
        id="F13", name="late passes of a relay, and sends that block", run=late, setting=own_kafka
    ),
)
