"""The mutant runs: per mutant the fault that shows its defect, and the invariant that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.verification.faults import (
    check_mutant_runs,
    client_mutant_runs,
    consumer_mutant_runs,
    half_message_mutant_runs,
    matrix,
    reconciliation_mutant_runs,
    size_mutant_runs,
    worker_mutant_runs,
)
from tests.verification.faults.bank import by_hand
from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.matrix import Fault, Row, Setting, the_runs_servers
from tests.verification.faults.mutant_invariants import (
    ATTEMPT_KEPT,
    CLAIMED_BYTES,
    DRAIN,
    EACH_PARKED,
    EXPECTED,
    FOR_A_PERSON,
    HUNG_UP,
    INSERTED_BYTES,
    LEASE_KEPT,
    NO_CONFLICTS,
    NO_ROWS_IN_REASONS,
    NOT_BURNT,
    NOT_PREPARED,
    OUT_OF_LINE,
    OWN_SESSIONS,
    POLLED_BYTES,
    REFUNDED,
    SHARDS_KEPT,
    STRUCK_OUT,
    UNDONE,
)
from tests.verification.faults.mutants import MUTANTS, Mutant
from tests.verification.faults.scenarios import (
    breaker,
    connections,
    foreign_producers,
    forgery,
    held_keys,
    rollback,
    takeovers,
    topics,
)
from tests.verification.faults.sweep import in_a_consumer, in_a_relay, in_the_clients
from tests.verification.faults.world import World, own_kafka, own_ledger, own_servers

DRAIN_WITHIN_S = 12.0
"""Shorter than for shieldtx itself: a mutant may never drain."""

SHORT_S = 25.0
"""Seconds for what a mutant never does, and shieldtx does in a few seconds."""

TRIES = 3
"""Runs of a mutant before it counts as not caught: one run may miss the race that shows it."""

EXACT = {"falsely_reported", "missed", "repaired_again"}
"""Counts of the reconciliation: it reports each mismatch, and repairs each once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MutantRun:
    """The fault that shows a mutant's defect, and the invariant that has to fail."""

    invariant: str
    run: Callable[[Banks], None]
    setting: Setting = the_runs_servers


@dataclass(frozen=True, kw_only=True, slots=True)
class MutantRunResult:
    """The result of a mutant's last run."""

    mutant: Mutant
    invariant: str
    row: Row
    tries: int = 1

    @property
    def caught(self) -> bool:
        """Return whether the invariant that should find the defect has found it."""
        if expected := EXPECTED.get(self.invariant):
            return any(expected in problem for problem in self.row.problems)
        counted = self.row.reconciled if self.invariant in EXACT else self.row.counts
        return counted is not None and getattr(counted, self.invariant) > 0

    def as_json(self) -> dict[str, Any]:
        """Return the result for the report."""
        return {
            "id": self.mutant.id,
            "defect": self.mutant.defect,
            "caught": self.caught,
            "invariant": self.invariant,
            "tries": self.tries,
        }


def run(name: str, world: World, *, seed: int) -> MutantRunResult:
    """Run a mutant in two banks, with other seeds until it is caught, TRIES times at most."""
    mutant_run, mutant = MUTANT_RUNS[name], MUTANTS[name]
    fault = Fault(id=name, name=mutant.defect, run=mutant_run.run, setting=mutant_run.setting)
    for tries in range(1, TRIES + 1):
        row = matrix.run(
            fault,
            world,
            seed=seed + tries - 1,
            settings={mutant.variable: name},
            drain_within=DRAIN_WITHIN_S,
        )
        result = MutantRunResult(
            mutant=mutant, invariant=mutant_run.invariant, row=row, tries=tries
        )
        if result.caught:
            break
    return result


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
    # More than the freezing relay takes: a batch, and the next one ahead.
    banks.write(160, accounts=banks.accounts[:1], refused=0.0)
    point = Failpoint(step="publish", when="before", action="freeze")
    banks.upstream.launch("relay", **banks.upstream.broken_at(point))
    banks.struck(banks.upstream)
    banks.upstream.relay()
    banks.outlive_standstill(banks.upstream)


def _with_lost_answers(banks: Banks) -> None:
    """Lose every answer until the attempts, if any are counted, must be used up."""
    banks.open(but="upstream relay")
    point = Failpoint(step="publish", when="after", action="raise", nth=0)
    relay = banks.upstream.launch("relay", **banks.upstream.broken_at(point))
    banks.write(10, refused=0.0)
    banks.until(lambda: len(banks.records()) >= 40, "the events are published again and again")
    relay.kill()
    banks.upstream.relay()


def _interrupted_once(banks: Banks) -> None:
    """A hook raises SystemExit once; the next write must not overtake the interrupted one."""
    banks.open(but="upstream relay")
    one_account = banks.accounts[:1]
    point = Failpoint(step="publish", when="before", action="interrupt")
    banks.write(5, accounts=one_account, refused=0.0)
    # The abandoned claim must outlast the writing of the overtaking rows, also on a slow machine.
    longer = {"SHIELDTX_RELAY_LEASE": "6", "SHIELDTX_RELAY_SEND_TIMEOUT": "4.5"}
    banks.upstream.launch("relay", **banks.upstream.broken_at(point), **longer)
    banks.struck(banks.upstream)
    banks.write(10, accounts=one_account, refused=0.0)


def a_handler_that_kills(banks: Banks) -> None:
    """Each attempt at one transfer kills its process; in the end it has to be given up."""
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
    """Break a step at a failpoint; with `refused=0.0` at an event that has an effect."""
    return partial(way, point=Failpoint(step=step, when=when, action=action), **how)


def _on_one_account(way: Callable[..., None]) -> Callable[[Banks], None]:
    def run(banks: Banks) -> None:
        way(replace(banks, accounts=banks.accounts[:1]))

    return run


MUTANT_RUNS: dict[str, MutantRun] = {
    "M1": MutantRun(invariant="lost", run=_broken(in_a_relay, "publish", "before", "raise")),
    "M2": MutantRun(invariant="lost", run=_broken(in_a_relay, "claim", "after", "exit")),
    "M3": MutantRun(invariant="lost", run=_with_a_poison_row),
    "M4": MutantRun(invariant="inversions", run=_under_load),
    "M5": MutantRun(
        invariant="double", run=_broken(in_a_relay, "publish", "after", "drop", refused=0.0)
    ),
    "M6": MutantRun(invariant="double", run=_broken(in_a_consumer, "handler", "after", "exit")),
    "M7": MutantRun(invariant="neither", run=_broken(in_a_consumer, "rollback", "before", "exit")),
    "M8": MutantRun(
        invariant="both", run=_broken(in_a_consumer, "handler", "before", "raise", refused=0.0)
    ),
    "M9": MutantRun(invariant="lost", run=_with_a_long_transaction),
    "M10": MutantRun(invariant="inversions", run=_with_two_relays),
    "M11": MutantRun(invariant="illegal", run=_broken(in_a_relay, "publish", "after", "drop")),
    "M12": MutantRun(
        invariant="illegal",
        run=_broken(in_a_consumer, "effect", "before", "freeze", refused=0.0),
    ),
    "M13": MutantRun(invariant="both", run=_with_lost_answers),
    "M14": MutantRun(invariant="neither", run=_broken(in_a_consumer, "receive", "before", "exit")),
    "M15": MutantRun(invariant=DRAIN, run=a_handler_that_kills),
    "M16": MutantRun(
        invariant="inversions",
        run=_on_one_account(_broken(in_a_consumer, "handler", "before", "raise", refused=0.0)),
    ),
    "M17": MutantRun(invariant="ghost", run=_broken(in_the_clients, "write", "after", "exit")),
    "M18": MutantRun(invariant="both", run=forgery.forged_among_genuine, setting=forgery.signed),
    "M26": MutantRun(invariant="inversions", run=_interrupted_once),
    "M34": MutantRun(invariant=DRAIN, run=connections.failed_over),
    "M37": MutantRun(invariant="ghost", run=foreign_producers.aborted_among_good_ones),
    "M45": MutantRun(invariant=DRAIN, run=topics.missing_for_a_while, setting=own_kafka),
    # A transaction that another fault holds open on the server would stop the fence.
    "M46": MutantRun(invariant="inversions", run=topics.missing_for_a_while, setting=own_servers),
    "M19": MutantRun(invariant="falsely_reported", run=reconciliation_mutant_runs.all_in_flight),
    "M20": MutantRun(invariant="missed", run=reconciliation_mutant_runs.a_changed_payload),
    "M21": MutantRun(invariant="repaired_again", run=reconciliation_mutant_runs.repaired_and_done),
    "M22": MutantRun(invariant="ghost", run=reconciliation_mutant_runs.repaired_and_done),
    "M62": MutantRun(invariant=STRUCK_OUT, run=reconciliation_mutant_runs.struck_out_and_lost),
    "M63": MutantRun(invariant=UNDONE, run=reconciliation_mutant_runs.undone_and_parked),
    "M23": MutantRun(invariant="ghost", run=half_message_mutant_runs.parked, setting=own_ledger),
    "M24": MutantRun(
        invariant="lost", run=half_message_mutant_runs.checked_in_flight, setting=own_ledger
    ),
    # The local transaction of an immune message fails if a check ran before it.
    "M25": MutantRun(invariant="fail", run=half_message_mutant_runs.immune, setting=own_ledger),
    "M36": MutantRun(invariant="ghost", run=half_message_mutant_runs.believed, setting=own_ledger),
    "M38": MutantRun(invariant="neither", run=consumer_mutant_runs.failing_to_decode),
    "M39": MutantRun(invariant=DRAIN, run=consumer_mutant_runs.beside_unhandled_rows),
    "M40": MutantRun(invariant=REFUNDED, run=rollback.purged_beside_rollbacks),
    "M41": MutantRun(invariant=REFUNDED, run=consumer_mutant_runs.renamed),
    "M48": MutantRun(invariant="neither", run=consumer_mutant_runs.committing_halfway),
    "M52": MutantRun(invariant=NO_ROWS_IN_REASONS, run=consumer_mutant_runs.quoted_by_errors),
    "M42": MutantRun(invariant=OWN_SESSIONS, run=connections.sessions_of_forks),
    "M43": MutantRun(invariant=NO_CONFLICTS, run=connections.side_by_side),
    "M54": MutantRun(
        invariant=NOT_PREPARED, run=connections.pooled, setting=connections.behind_a_pooler
    ),
    "M47": MutantRun(invariant="lost", run=client_mutant_runs.late_in_two_phases),
    "M49": MutantRun(
        invariant=CLAIMED_BYTES, run=size_mutant_runs.claimed, setting=size_mutant_runs.bounded
    ),
    "M50": MutantRun(
        invariant=POLLED_BYTES, run=size_mutant_runs.received, setting=size_mutant_runs.bounded
    ),
    "M51": MutantRun(
        invariant=INSERTED_BYTES, run=size_mutant_runs.received, setting=size_mutant_runs.bounded
    ),
    "M53": MutantRun(invariant="inversions", run=check_mutant_runs.sequences_unchecked),
    "M55": MutantRun(invariant=LEASE_KEPT, run=worker_mutant_runs.longer_than_the_watchdog),
    "M56": MutantRun(invariant="fail", run=worker_mutant_runs.upgraded_behind_a_reader),
    "M57": MutantRun(
        invariant=EACH_PARKED,
        run=partial(topics.parked_before_and_after, patience_s=SHORT_S),
        setting=own_kafka,
    ),
    "M58": MutantRun(
        invariant=OUT_OF_LINE,
        run=partial(held_keys.refused_beside_healthy, patience_s=SHORT_S),
        setting=own_kafka,
    ),
    "M59": MutantRun(invariant=DRAIN, run=worker_mutant_runs.kafka_away, setting=own_kafka),
    "M60": MutantRun(invariant=HUNG_UP, run=connections.signalled),
    "M61": MutantRun(invariant=FOR_A_PERSON, run=rollback.after_the_purge),
    "M64": MutantRun(invariant=SHARDS_KEPT, run=takeovers.suspended_relay),
    "M65": MutantRun(invariant=ATTEMPT_KEPT, run=takeovers.killed_consumer),
    # The rows wait for the end of their leases, and later ones of their keys do not.
    "M66": MutantRun(invariant="inversions", run=partial(takeovers.killed_relays, lease_s=12)),
    "M67": MutantRun(invariant=NOT_BURNT, run=breaker.paused_until_repaired),
    "M68": MutantRun(invariant=NOT_BURNT, run=breaker.paused_until_repaired),
}
