"""The sweep: every failpoint with every action, each a small run of two banks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.faults.bank import by_hand
from tests.faults.banks import Banks, Side
from tests.faults.failpoints import ACTIONS, STEPS, Failpoint
from tests.faults.matrix import Fault

TRANSFERS = 24
REFUSED = 0.4
"""A share that makes every step happen within few transfers."""

INSIDE = {"handler"}
"""Steps that have no end of their own."""


def faults() -> Iterator[Fault]:
    """Yield a fault for each failpoint and action."""
    for step, meaning in STEPS.items():
        for when in ("before",) if step in INSIDE else ("before", "after"):
            for action in ACTIONS:
                point = Failpoint(step=step, when=when, action=action)
                yield Fault(
                    id=f"{step}.{when}.{action}",
                    name=f"{action} {when}: {meaning}",
                    run=partial(_SCENARIOS.get(step, _in_a_consumer), point=point),
                )


def _in_the_clients(banks: Banks, point: Failpoint) -> None:
    banks.open()
    clients = banks.begin_writing(
        TRANSFERS, environment=banks.upstream.broken_at(point, delay=1), refused=REFUSED
    )
    banks.struck(banks.upstream)
    clients.join(60)
    banks.write(TRANSFERS, refused=REFUSED)


def _in_a_relay(banks: Banks, point: Failpoint, *, side: str = "upstream") -> None:
    broken: Side = getattr(banks, side)
    banks.open(but=f"{side} relay")
    broken.launch("relay", **broken.broken_at(point))
    banks.write(TRANSFERS, refused=REFUSED)
    banks.struck(broken)
    broken.relay()


def _where_it_fails_for_good(banks: Banks, point: Failpoint) -> None:
    banks.open(but="upstream relay")
    banks.upstream.launch("relay", **banks.upstream.broken_at(point))
    banks.write(TRANSFERS, refused=REFUSED)
    banks.upstream.call("oversize", by_hand.transfer_too_much, banks.accounts[0]).finish()
    banks.struck(banks.upstream)
    banks.upstream.relay()


def _in_a_consumer(banks: Banks, point: Failpoint, *, side: str = "downstream") -> None:
    broken: Side = getattr(banks, side)
    banks.open(but=f"{side} consume")
    broken.launch("consume", broken.group, **broken.broken_at(point))
    banks.write(TRANSFERS, refused=REFUSED)
    banks.struck(broken)
    broken.consume()


def _in_a_replay(banks: Banks, point: Failpoint) -> None:
    banks.open()
    banks.write(TRANSFERS, refused=REFUSED, undo="never")
    banks.drain()
    dead = banks.upstream.inbox()["DEAD"]
    banks.upstream.call("replay", by_hand.replay_all, **banks.upstream.broken_at(point)).join(30)
    banks.struck(banks.upstream)
    banks.drain()
    banks.expect(banks.upstream.inbox().get("DEAD") == dead, "what can never be undone is DEAD")


def _in_the_purge(banks: Banks, point: Failpoint) -> None:
    banks.open()
    banks.write(TRANSFERS, refused=REFUSED)
    banks.drain()
    purge = partial(banks.upstream.call, "purge", by_hand.purge)
    purge(**banks.upstream.broken_at(point)).join(30)
    banks.struck(banks.upstream)
    purge().finish()
    banks.expect(not banks.upstream.outbox(), "settled rows are purged")


_SCENARIOS: dict[str, Callable[..., None]] = {
    "write": _in_the_clients,
    "commit": _in_the_clients,
    "renew": _in_a_relay,
    "claim": _in_a_relay,
    "publish": _in_a_relay,
    "settle": _in_a_relay,
    "fail": _where_it_fails_for_good,
    "compensation": partial(_in_a_consumer, side="upstream"),
    "replay": _in_a_replay,
    "retention": _in_the_purge,
}
