"""The hunts: for each mutant the fault that has to bring it down, through a certain invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.faults import hunts_at_night, hunts_at_the_counter, matrix
from tests.faults.bank import by_hand
from tests.faults.banks import Banks
from tests.faults.failpoints import Failpoint
from tests.faults.matrix import Fault, Row, Setting, the_runs_servers
from tests.faults.mutants import MUTANTS, Mutant
from tests.faults.scenarios import forgery
from tests.faults.sweep import in_a_consumer, in_a_relay, in_the_clients
from tests.faults.world import World, own_ledger

DRAIN_WITHIN_S = 12.0
"""A mutant that never comes to rest need not be waited for as long as the real thing."""

DRAIN = "drain"
"""The invariant that the backlog empties."""

EXACT = {"accused", "missed", "repaired_again"}
"""What is counted of the reconciliation: it reports what is wrong, and repairs it once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunt:
    """How a mutant is to be found."""

    invariant: str
    run: Callable[[Banks], None]
    setting: Setting = the_runs_servers


@dataclass(frozen=True, kw_only=True, slots=True)
class Trophy:
    """What came of a hunt."""

    mutant: Mutant
    invariant: str
    row: Row

    @property
    def caught(self) -> bool:
        """Whether the invariant that should find the defect has found it."""
        if self.invariant == DRAIN:
            return any("the backlog empties" in problem for problem in self.row.problems)
        counted = self.row.reconciled if self.invariant in EXACT else self.row.counts
        return counted is not None and getattr(counted, self.invariant) > 0

    def as_json(self) -> dict[str, Any]:
        """Return the trophy for the report."""
        return {
            "id": self.mutant.id,
            "defect": self.mutant.defect,
            "caught": self.caught,
            "invariant": self.invariant,
        }


def run(mutant: str, world: World, *, seed: int) -> Trophy:
    """Let a mutant loose on two banks."""
    hunt, hunted = HUNTS[mutant], MUTANTS[mutant]
    fault = Fault(id=mutant, name=hunted.defect, run=hunt.run, setting=hunt.setting)
    row = matrix.run(
        fault,
        world,
        seed=seed,
        settings={hunted.variable: mutant},
        drain_within=DRAIN_WITHIN_S,
    )
    return Trophy(mutant=hunted, invariant=hunt.invariant, row=row)


def _under_load(banks: Banks) -> None:
    banks.open()
    banks.write(80, accounts=banks.accounts[:1])


def _with_a_poison_row(banks: Banks) -> None:
    banks.open()
    banks.upstream.call("poison", by_hand.transfer_too_much, banks.accounts[0]).finish()
    banks.write(20)


def _with_a_long_transaction(banks: Banks) -> None:
    banks.open()
    held = banks.upstream.call("long", by_hand.transfer_slowly, "account-0", str(banks.folder))
    banks.until((banks.folder / "open").exists, "the long transaction has its sequence number")
    banks.write(40, accounts=banks.accounts[1:])
    banks.until(lambda: banks.upstream.outbox().get("PROCESSED", 0) >= 40, "later events are out")
    (banks.folder / "close").touch()
    held.finish()


def _with_two_relays(banks: Banks) -> None:
    banks.open(but="upstream relay")
    # More than the one that freezes takes: a batch, and the next one ahead.
    banks.write(160, accounts=banks.accounts[:1], refused=0.0)
    point = Failpoint(step="publish", when="before", action="freeze")
    banks.upstream.launch("relay", **banks.upstream.broken_at(point))
    banks.struck(banks.upstream)
    banks.upstream.relay()
    banks.outlive_standstill(banks.upstream)


def _with_lost_answers(banks: Banks) -> None:
    """Every answer is lost until the attempts, if any are counted, must be used up."""
    banks.open(but="upstream relay")
    point = Failpoint(step="publish", when="after", action="raise", nth=0)
    relay = banks.upstream.launch("relay", **banks.upstream.broken_at(point))
    banks.write(10, refused=0.0)
    banks.until(lambda: len(banks.records()) >= 40, "the events are published again and again")
    relay.kill()
    banks.upstream.relay()


def a_handler_that_kills(banks: Banks) -> None:
    """Each attempt at one transfer takes its process along; in the end it has to be given up."""
    banks.open(but="downstream consume")
    banks.write(1, refused=0.0)
    point = Failpoint(step="handler", when="before", action="exit", nth=0)

    def given_up() -> bool:
        consumer = banks.downstream.launch(
            "consume", banks.downstream.group, **banks.downstream.broken_at(point)
        )
        banks.until(
            lambda: not consumer.is_running or banks.drained(), "it dies or is done with it", 60
        )
        return banks.drained()

    for _ in range(7):
        if given_up():
            break


def _broken(
    way: Callable[..., None], step: str, when: str, action: str, **how: float
) -> Callable[..., None]:
    """Break something at a failpoint; with `refused=0.0` at an event that has an effect."""
    return partial(way, point=Failpoint(step=step, when=when, action=action), **how)


def _on_one_account(way: Callable[..., None]) -> Callable[[Banks], None]:
    def run(banks: Banks) -> None:
        way(replace(banks, accounts=banks.accounts[:1]))

    return run


HUNTS: dict[str, Hunt] = {
    "M1": Hunt(invariant="lost", run=_broken(in_a_relay, "publish", "before", "raise")),
    "M2": Hunt(invariant="lost", run=_broken(in_a_relay, "claim", "after", "exit")),
    "M3": Hunt(invariant="lost", run=_with_a_poison_row),
    "M4": Hunt(invariant="inversions", run=_under_load),
    "M5": Hunt(
        invariant="double", run=_broken(in_a_relay, "publish", "after", "drop", refused=0.0)
    ),
    "M6": Hunt(invariant="double", run=_broken(in_a_consumer, "handler", "after", "exit")),
    "M7": Hunt(invariant="neither", run=_broken(in_a_consumer, "rollback", "before", "exit")),
    "M8": Hunt(
        invariant="both", run=_broken(in_a_consumer, "handler", "before", "raise", refused=0.0)
    ),
    "M9": Hunt(invariant="lost", run=_with_a_long_transaction),
    "M10": Hunt(invariant="inversions", run=_with_two_relays),
    "M11": Hunt(invariant="illegal", run=_broken(in_a_relay, "publish", "after", "drop")),
    "M12": Hunt(
        invariant="illegal",
        run=_broken(in_a_consumer, "effect", "before", "freeze", refused=0.0),
    ),
    "M13": Hunt(invariant="both", run=_with_lost_answers),
    "M14": Hunt(invariant="neither", run=_broken(in_a_consumer, "receive", "before", "exit")),
    "M15": Hunt(invariant=DRAIN, run=a_handler_that_kills),
    "M16": Hunt(
        invariant="inversions",
        run=_on_one_account(_broken(in_a_consumer, "handler", "before", "raise", refused=0.0)),
    ),
    "M17": Hunt(invariant="ghost", run=_broken(in_the_clients, "write", "after", "exit")),
    "M18": Hunt(invariant="both", run=forgery.forged_among_genuine, setting=forgery.signed),
    "M19": Hunt(invariant="accused", run=hunts_at_night.all_in_flight),
    "M20": Hunt(invariant="missed", run=hunts_at_night.a_changed_payload),
    "M21": Hunt(invariant="repaired_again", run=hunts_at_night.repaired_and_done),
    "M22": Hunt(invariant="ghost", run=hunts_at_night.repaired_and_done),
    "M23": Hunt(invariant="ghost", run=hunts_at_the_counter.parked, setting=own_ledger),
    "M24": Hunt(invariant="lost", run=hunts_at_the_counter.checked_in_flight, setting=own_ledger),
    # What is immune is harmed by nobody: its local transaction fails where a check came before it.
    "M25": Hunt(invariant="fail", run=hunts_at_the_counter.immune, setting=own_ledger),
}
