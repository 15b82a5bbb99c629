"""F58: workers that die lose their leases at once on their host; those that stand still do not."""

from __future__ import annotations

from functools import partial

from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.matrix import Fault
from tests.verification.faults.scenarios.members import await_deaths, launch_dying
from tests.verification.faults.scenarios.relay import (
    STEPS_OF_A_PASS,
    epochs,
    has_shards,
    launch_broken,
)
from tests.verification.faults.side import Side

LEASE_S = 150
"""The lease of workers that die. Nothing waits for its end."""

SOON_S = 50
"""The longest wait for a takeover: it takes 2 s, and longer on a busy machine."""

SUSPENDED_LEASE_S = 12
"""The lease of a relay that stands still for longer."""

SHARDS_KEPT = "a relay that stands still keeps its shards until its lease ends"
ATTEMPT_KEPT = "a consumer that stands still keeps its attempt"

_RELEASED = "action=dead_shards_released"
_ENDED = "action=dead_attempts_ended"
_LEASED_UNTIL = "SELECT min(lease_until) FROM shield_shard"
_IN_PROGRESS = "SELECT event_id, key, lease_token FROM shield_inbox WHERE lease_until > now()"


def killed_relays(banks: Banks, *, lease_s: int = LEASE_S) -> None:
    """Relays die with claimed rows: a running relay takes over, and then relays that start."""
    up = banks.upstream
    lease = {"SHIELDTX_RELAY_LEASE": str(lease_s)}
    banks.open(but="upstream relay")
    dies = Failpoint(step="claim", when="after", action="exit")
    first = up.relay(**lease, **up.broken_at(dies))
    banks.until(partial(has_shards, up, first), "the first relay has the shards")
    heir = up.relay(**lease)
    banks.expect(not has_shards(up, heir), "the second relay waits for shards")
    # Before and after the death, so that later events of its keys must not overtake.
    banks.write(80)
    await_deaths(banks, [first])
    banks.until(partial(heir.has_logged, _RELEASED), "a running relay sees the death", SOON_S)
    _expect_all_sent(banks, within=SOON_S)
    heir.terminate()
    banks.write(60)
    for step, when in STEPS_OF_A_PASS:
        point = Failpoint(step=step, when=when, action="exit")
        await_deaths(banks, [launch_broken(banks, point, **lease)])
        still = up.one(_LEASED_UNTIL + " HAVING min(lease_until) > now() + interval '1 min'")
        banks.expect(still, f"the lease of the relay that died {when} {step} lasts")
    banks.write(20)
    last = up.relay(**lease)
    banks.until(partial(last.has_logged, _RELEASED), "a relay takes over at its start", SOON_S)
    _expect_all_sent(banks, within=SOON_S)


def _expect_all_sent(banks: Banks, *, within: float) -> None:
    banks.until(lambda: not banks.upstream.unsettled(), "all events are sent", within)


def suspended_relay(banks: Banks) -> None:
    """A relay stands still with claimed rows, next to relays that look for dead ones."""
    up = banks.upstream
    lease = {"SHIELDTX_RELAY_LEASE": str(SUSPENDED_LEASE_S), "SHIELDTX_RELAY_SEND_TIMEOUT": "8"}
    banks.open(but="upstream relay")
    dead = up.relay(**lease)
    banks.until(partial(has_shards, up, dead), "the first relay has the shards")
    dead.kill()
    banks.write(40)
    point = Failpoint(step="publish", when="before", action="freeze")
    zombie = launch_broken(banks, point, **lease)
    banks.expect(zombie.has_logged(_RELEASED), "the second relay takes over from the dead one")
    ends, before = up.one(_LEASED_UNTIL), epochs(up)
    others = [up.relay(**lease) for _ in range(2)]
    banks.until(lambda: epochs(up) > before, "the lease ends", SOON_S)
    banks.expect(up.one("SELECT now() >= :ends", ends=ends), SHARDS_KEPT)
    banks.expect(not any(other.has_logged(_RELEASED) for other in others), SHARDS_KEPT)
    banks.outlive_standstill(up, within=SOON_S)
    banks.until(partial(zombie.has_logged, "action=events_taken_over"), "the zombie is fenced")


def killed_consumer(banks: Banks) -> None:
    """A consumer dies in a handler, the next one stands still before one, and a third one starts.

    The third one has the events and the partitions of the dead one long before their leases and its
    membership end, and leaves the event of the one that stands still alone.
    """
    side = banks.downstream
    # The broker would keep the partitions of a dead member for as long.
    side.environment = {
        **side.environment,
        "BANK_HANDLER_LEASE": str(LEASE_S),
        "BANK_SESSION_TIMEOUT": str(LEASE_S),
    }
    banks.open(but="downstream consume")
    banks.write(40)
    _expect_all_sent(banks, within=30)
    await_deaths(banks, launch_dying(side, [("handler", "before")]))
    died = side.rows(_IN_PROGRESS)
    banks.expect(died, "the first consumer dies with attempts in progress")
    side.mark.unlink()
    point = Failpoint(step="effect", when="before", action="freeze")
    zombie = side.launch("consume", side.group, **side.broken_at(point))
    banks.struck(side, within=60)
    banks.expect(zombie.has_logged(_ENDED), "a consumer ends dead attempts at its start")
    kept = side.rows(_IN_PROGRESS)
    banks.expect(len(kept) == 1, f"the second consumer has one attempt in progress, not {kept}")
    heir = side.consume()
    # Of all partitions, and of the keys that the suspended attempt does not hold.
    banks.write(40)
    keys = [row.key for row in kept]
    banks.until(lambda: not _left(banks, side, keys), "all other keys continue", SOON_S)
    banks.expect(side.rows(_IN_PROGRESS) == kept, ATTEMPT_KEPT)
    banks.expect(not heir.has_logged(_ENDED), ATTEMPT_KEPT)
    side.wake.touch()
    banks.until(lambda: not _left(banks, side, []), "the suspended attempt goes on")
    burnt = "SELECT count(*) FROM shield_inbox WHERE status = 'PROCESSED' AND attempts > 2"
    banks.expect(not side.one(burnt), "a death costs one attempt, and a standstill none")


def _left(banks: Banks, side: Side, keys: list[str]) -> int:
    """Count the transfers of all other keys that are not settled downstream."""
    written = "SELECT count(*) FROM transfer WHERE account <> ALL(:keys)"
    settled = (
        "SELECT count(*) FROM shield_inbox WHERE settled_at IS NOT NULL AND key <> ALL(:keys) "
        "AND consumer_group = :group"
    )
    of_group = side.one(settled, keys=keys, group=side.group)
    return int(banks.upstream.one(written, keys=keys) - of_group)


FAULTS = (
    Fault(id="F58a", name="relays killed, taken over on their host at once", run=killed_relays),
    Fault(
        id="F58b",
        name="relay suspended next to relays that look for dead ones",
        run=suspended_relay,
    ),
    Fault(
        id="F58c",
        name="consumer killed, another suspended, taken over on their host",
        run=killed_consumer,
    ),
)
