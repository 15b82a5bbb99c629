"""Random overlapping calls of the write side, of the relay and of the purge."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from shieldtx.ports.relay import Retry, Settlement
from tests.verification.simulation.overlap import Drawn, name_of, number_of


class RelayCalls:
    """Calls on few rows of the outbox, of two relays."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.claims: list[tuple[Any, Any]] = []
        self.relays = ["one", "two"]

    def write(self) -> None:
        event = self.drawn.new_event()
        delay = self.drawn.draw.choice([0.0, 3.0])
        self.drawn.overlap.begin(
            f"write {name_of(event)}",
            lambda side, call: side.write(event, delay, call.stay_open),
            stays=self.drawn.stays() and len(self.drawn.events) > 2,
        )

    def take_over(self) -> None:
        """Let a relay claim rows after the leases of the other have expired."""
        if self.drawn.draw.random() < 0.7:
            self.drawn.overlap.pass_time(6.0)
        relay, lease = self.drawn.draw.choice(self.relays), timedelta(seconds=self.drawn.seconds())
        self.drawn.overlap.begin(
            "renew", lambda side, _: side.leases.renew(relay=relay, lease=lease)
        )
        self.claim(relay)

    def claim(self, relay: str | None = None) -> None:
        relay = relay or self.drawn.draw.choice(self.relays)
        self.drawn.overlap.begin(
            f"claim of {relay}",
            # Enough for all: the planner chooses the rows of a smaller claim.
            lambda side, _: side.outbox.claim(relay=relay, limit=400),
            seen=lambda claim: (
                [(c.envelope.id, c.attempts, c.unconfirmed) for c in claim.events],
                round(claim.lease_left.total_seconds(), 1),
            ),
            keep=self.keep_claim,
        )

    def keep_claim(self, mine: Any, theirs: Any) -> None:
        if mine.events:
            self.claims.append((mine, theirs))

    def withdraw(self) -> None:
        relay = self.drawn.draw.choice(self.relays)
        renamed = f"{relay}+"
        self.relays[self.relays.index(relay)] = renamed
        self.drawn.overlap.begin(
            "withdraw", lambda side, _: side.outbox.withdraw(relay=relay, renamed=renamed)
        )

    def settle(self) -> None:
        if not self.claims:
            return
        token, ids = self.claimed()
        ends: dict[str, list[UUID]] = {
            end: [] for end in ("processed", "processed", "unsent", "unconfirmed", "retry")
        }
        for event_id in ids:
            ends[self.drawn.draw.choice(list(ends))].append(event_id)
        settlement = Settlement(
            processed=ends["processed"],
            unsent=ends["unsent"],
            unconfirmed=ends["unconfirmed"],
            retries=[
                Retry(event_id=i, delay=timedelta(seconds=self.drawn.seconds()), reason="later")
                for i in ends["retry"]
            ],
            reason="away",
        )
        self.drawn.overlap.begin(
            f"settle {ends}", lambda side, _: side.outbox.settle(token(side), settlement)
        )

    def fail(self) -> None:
        if not self.claims:
            return
        token, ids = self.claimed()
        event_id, undoes = self.drawn.draw.choice(ids), self.drawn.draw.random() < 0.9
        self.drawn.overlap.begin(
            f"fail {number_of(event_id)}",
            lambda side, call: side.outbox.fail(
                token(side),
                event_id,
                reason="refused",
                local_rollback=call.stay_open if undoes else None,
            ),
            stays=self.drawn.stays() and undoes,
            fails=self.drawn.fails(),
        )

    def claimed(self) -> tuple[Callable[[Any], Any], list[UUID]]:
        """Draw a claim: its token on either side, and its rows."""
        mine, theirs = self.drawn.recent(self.claims)
        return self.drawn.of_side(mine.token, theirs.token), [c.envelope.id for c in mine.events]

    def purge(self) -> None:
        older = timedelta(seconds=self.drawn.seconds())
        for name in ("purge_outbox", "purge_inbox"):
            if not self.drawn.overlap.has_waiting():
                self.drawn.overlap.begin(
                    name,
                    lambda side, _, name=name: getattr(side.purge, name)(
                        older_than=older, limit=100
                    ),
                )
