"""The sweep: every failpoint with every action, each a small run of two banks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.verification.faults.bank import by_hand
from tests.verification.faults.bank.half_message_clients import SOUND_ENDS
from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import STANDSTILLS, STEPS, Failpoint
from tests.verification.faults.half_message_clients import HalfMessageClient, HalfMessageClients
from tests.verification.faults.matrix import Fault, the_runs_servers
from tests.verification.faults.side import Side
from tests.verification.faults.workers import Worker
from tests.verification.faults.world import own_ledger

TRANSFERS = 24
HALF_MESSAGE_TRANSFERS = 6
"""Transfers by half messages."""
REFUSED = 0.4
"""A share at which every step happens within few transfers."""

INSIDE = {"handler"}
"""Steps without an end of their own."""

HALF_MESSAGE_STEPS = {"prepare", "local", "outcome", "claim-checks", "store-results"}
"""Steps of a half message."""

_ACTIONS = {"before": ("exit", "raise", "freeze"), "after": ("exit", "freeze", "drop")}


def faults() -> Iterator[Fault]:
    """Yield a fault for each failpoint and action."""
    for step, meaning in STEPS.items():
        for when in ("before",) if step in INSIDE else ("before", "after"):
            for action in _ACTIONS[when]:
                point = Failpoint(step=step, when=when, action=action)
                yield Fault(
                    id=f"{step}.{when}.{action}",
                    name=f"{action} {when}: {meaning}",
                    run=partial(_SCENARIOS.get(step, in_a_consumer), point=point),
                    setting=own_ledger if step in HALF_MESSAGE_STEPS else the_runs_servers,
                )


def in_the_clients(banks: Banks, point: Failpoint) -> None:
    banks.open()
    clients = banks.begin_writing(
        TRANSFERS, environment=banks.upstream.broken_at(point), refused=REFUSED
    )
    banks.struck(banks.upstream)
    _outlive(banks, banks.upstream, point)
    clients.join(60)
    banks.write(TRANSFERS, refused=REFUSED)


def in_a_relay(
    banks: Banks, point: Failpoint, *, side: str = "upstream", refused: float = REFUSED
) -> None:
    broken: Side = getattr(banks, side)
    banks.open(but=f"{side} relay")
    zombie = broken.launch("relay", **broken.broken_at(point))
    banks.write(TRANSFERS, refused=refused)
    banks.struck(broken)
    broken.relay()
    _outlive(banks, broken, point, zombie)


def _where_it_fails_for_good(banks: Banks, point: Failpoint) -> None:
    banks.open(but="upstream relay")
    zombie = banks.upstream.launch("relay", **banks.upstream.broken_at(point))
    banks.write(TRANSFERS, refused=REFUSED)
    banks.upstream.call("oversize", by_hand.transfer_too_much, banks.accounts[0]).finish()
    banks.struck(banks.upstream)
    banks.upstream.relay()
    _outlive(banks, banks.upstream, point, zombie)


def in_a_consumer(
    banks: Banks, point: Failpoint, *, side: str = "downstream", refused: float = REFUSED
) -> None:
    broken: Side = getattr(banks, side)
    banks.open(but=f"{side} consume")
    zombie = broken.launch("consume", broken.group, **broken.broken_at(point))
    banks.write(TRANSFERS, refused=refused)
    banks.struck(broken)
    broken.consume()
    _outlive(banks, broken, point, zombie)


def _in_a_replay(banks: Banks, point: Failpoint) -> None:
    banks.open()
    banks.write(TRANSFERS, refused=REFUSED, undo="never")
    banks.drain()
    dead = banks.upstream.inbox()["DEAD"]
    replay = banks.upstream.call("replay", by_hand.replay_all, **banks.upstream.broken_at(point))
    banks.struck(banks.upstream)
    _outlive(banks, banks.upstream, point)
    replay.join(30)
    banks.drain()
    banks.expect(banks.upstream.inbox().get("DEAD") == dead, "what can never be undone is DEAD")


def _in_the_purge(banks: Banks, point: Failpoint) -> None:
    banks.open()
    banks.write(TRANSFERS, refused=REFUSED)
    banks.drain()
    short = {"SHIELDTX_RETENTION_OUTBOX": "0.1", "SHIELDTX_RETENTION_INBOX": "0.1"}
    broken = short | banks.upstream.broken_at(point)
    first = banks.upstream.call("purge", by_hand.purge, **broken)
    banks.struck(banks.upstream)
    banks.upstream.call("purge", by_hand.purge, **short).finish()
    _outlive(banks, banks.upstream, point)
    first.join(30)
    banks.expect(not banks.upstream.outbox(), "settled rows are purged")


def in_half_message_clients(banks: Banks, point: Failpoint) -> None:
    clients = HalfMessageClients(banks)
    banks.open()
    broken = _begin_clients(clients, "broken", dies_at=point)
    banks.struck(banks.upstream)
    _outlive(banks, banks.upstream, point)
    broken.end()
    _begin_clients(clients, "sound").end()


def in_a_check(banks: Banks, point: Failpoint) -> None:
    """Every commit and rollback call fails, so that each half message is checked."""
    up = banks.upstream
    banks.open(but="upstream relay")
    unreported = Failpoint(step="outcome", when="before", action="raise", nth=0)
    _begin_clients(HalfMessageClients(banks), "unreported", dies_at=unreported).end()
    up.mark.unlink()
    zombie = up.launch("relay", **up.broken_at(point))
    banks.struck(up)
    up.relay()
    _outlive(banks, up, point, zombie)


def _begin_clients(clients: HalfMessageClients, name: str, **how: Failpoint) -> HalfMessageClient:
    return clients.begin(name, transfers=HALF_MESSAGE_TRANSFERS, threads=2, ends=SOUND_ENDS, **how)


def _outlive(banks: Banks, side: Side, point: Failpoint, zombie: Worker | None = None) -> None:
    """Resume a process that the failpoint stopped, after other processes did its work.

    A worker is then terminated: first it finishes its current work, which the checker counts.
    """
    if point.action in STANDSTILLS:
        banks.outlive_standstill(side)
        if zombie is not None:
            zombie.terminate()


_SCENARIOS: dict[str, Callable[..., None]] = {
    "write": in_the_clients,
    "commit": in_the_clients,
    "prepare": in_half_message_clients,
    "local": in_half_message_clients,
    "outcome": in_half_message_clients,
    "claim-checks": in_a_check,
    "store-results": in_a_check,
    "renew": in_a_relay,
    "claim": in_a_relay,
    "publish": in_a_relay,
    "settle": in_a_relay,
    "fail": _where_it_fails_for_good,
    "compensation": partial(in_a_consumer, side="upstream"),
    "replay": _in_a_replay,
    "retention": _in_the_purge,
}
