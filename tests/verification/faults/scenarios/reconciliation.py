"""F34: the findings of a reconciliation of both banks, and the changes of its repair."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shieldtx.reconcile.verdicts import Verdict
from tests.verification.faults import damage
from tests.verification.faults.bank import auditors_of, long_transactions
from tests.verification.faults.banks import Banks
from tests.verification.faults.damage import Found, SavedRows
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.matrix import Fault
from tests.verification.faults.reconciliation_outcomes import Mismatch
from tests.verification.faults.reconciliation_runs import (
    LATE_AND_RESTORED,
    MISMATCHES,
    ReconciliationRuns,
    done_by,
)
from tests.verification.faults.scenarios.members import await_deaths
from tests.verification.faults.side import Side
from tests.verification.faults.world import ACCOUNTS, World

IN_FLIGHT = 8
SINGLE_USE = 20
"""Accounts with one transfer each: a repair sends late, and order is by account."""


def more_accounts(world: World, open_: ExitStack) -> Mapping[str, Any]:
    """Open some more accounts than other faults have."""
    del world, open_
    return {"accounts": ACCOUNTS + SINGLE_USE}


def discrepancies_found(banks: Banks) -> None:
    """Every kind of damage gets its own verdict, rows in flight get none, and repairs run once."""
    reconciliation = ReconciliationRuns(banks=banks, with_auditors=True, with_topics=True)
    planted, saved = _plant(banks, reconciliation)
    forgotten = set(MISMATCHES) - {found.verdict for found in planted.all}
    banks.expect(not forgotten, f"there is no damage for {sorted(forgotten)}")
    await_quiet(reconciliation)
    with open_transfer(banks):
        _write_in_flight(banks)
        result = reconciliation.judge(planted.all)
        in_flight = result.totals.get(Verdict.IN_FLIGHT)
        # For each of both groups, and for the topic.
        banks.expect(in_flight == 3 * IN_FLIGHT, f"all that is in flight is: {result.totals}")
        again = reconciliation.judge(planted.all)
        banks.expect(again.totals == result.totals, "a second run finds the same")
    _repair(banks, reconciliation, planted)
    open_all(banks, BANK_REPAIRED="1")
    banks.drain()
    await_auditors(banks)
    _repair_in_vain(banks, reconciliation)
    await_quiet(reconciliation)
    with open_transfer(banks):
        load = banks.begin_writing(60, accounts=banks.accounts[:ACCOUNTS], pause=0.5)
        reconciliation.judge(planted.for_operators)
        load.finish()
    saved.undo()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Planted:
    repairable: Found
    """Repaired by the plain command."""
    overtaken: Found
    """Lost by a restore, with later events of their keys: repaired with both options."""
    parked: Found
    """Repaired where the command names the verdict."""
    absent: Found
    """Records missing from all topics, likewise: a repair hands the events over to the group."""
    for_operators: Found
    idle: Found
    """Repaired by workers alone."""

    @property
    def all(self) -> Found:
        by_name = self.overtaken | self.parked | self.absent
        return self.repairable | by_name | self.for_operators | self.idle


def _plant(banks: Banks, reconciliation: ReconciliationRuns) -> tuple[_Planted, SavedRows]:
    """Let the banks work, and break everything breakable, with the affected processes stopped."""
    up, down = banks.sides
    common, single = list(banks.accounts[:ACCOUNTS]), iter(banks.accounts[ACCOUNTS:])

    def accounts(number: int) -> list[str]:
        return [next(single) for _ in range(number)]

    both = [down.group, auditors_of(down.group)]
    open_all(banks)
    since = _first_business(banks, reconciliation, common)
    banks.write(60, refused=0.1, accounts=common)
    banks.write(6, refused=1.0, accounts=common)
    banks.write(2, refused=1.0, accounts=common, undo="never")
    banks.drain()
    stop(down, "relay")
    pending = damage.leave_rollbacks_pending(banks, accounts(2))
    stuck = _leave_attempt(banks, accounts(1))
    await_auditors(banks)
    for side in banks.sides:
        side.stop_all()
    stuck |= damage.leave_claimed(banks, accounts(2), both)
    lost = damage.lose_records(banks, accounts(3), both)
    rejected = damage.reject(banks, accounts(2), both)
    idle = damage.leave_unclaimed(banks, accounts(1), both)
    saved = SavedRows(banks, since=since)
    dead = up.rows("SELECT event_id FROM shield_inbox WHERE status = 'DEAD'")
    forgotten, denied = saved.forget_upstream(2), saved.deny(2)
    return _Planted(
        repairable=pending | stuck | lost | saved.lose_rollbacks_of_auditors(1),
        overtaken=saved.forget_by_auditors(2),
        absent=damage.on_topic(Verdict.ABSENT_FROM_TOPIC, lost),
        parked=rejected | {Mismatch(Verdict.PARKED, up.group, row.event_id) for row in dead},
        for_operators=forgotten
        | damage.on_topic(Verdict.RECORD_WITHOUT_ROW, forgotten)
        | denied
        | damage.on_topic(Verdict.STATUS_DISAGREES, denied)
        | saved.antedate(2)
        | saved.falsify(2)
        | saved.relabel(1)
        | saved.try_too_often(1)
        | saved.keep_effect(1)
        | saved.settle_without_compensation(1)
        | saved.settle_by_auditors_without_compensation(1),
        idle=idle,
    ), saved


def _first_business(
    banks: Banks, reconciliation: ReconciliationRuns, accounts: list[str]
) -> datetime:
    """Fill all inboxes, and return since when: a repair distrusts times before their first row.

    These rows are not damaged, and all later work is later than the margin.
    """
    banks.write(2, accounts=accounts)
    banks.write(2, refused=1.0, accounts=accounts)
    banks.drain()
    await_auditors(banks)
    await_quiet(reconciliation)
    since: datetime = banks.upstream.one("SELECT clock_timestamp()")
    return since


def _leave_attempt(banks: Banks, accounts: list[str]) -> Found:
    """A consumer dies in the middle of an attempt, and no other consumer starts."""
    down = banks.downstream
    stop(down, f"consume {down.group}$")
    events = damage.transfer_each(banks, accounts)
    point = Failpoint(step="receive", when="after", action="exit")
    await_deaths(banks, [down.launch("consume", down.group, **down.broken_at(point))])
    lapsed = "SELECT count(*) FROM shield_inbox WHERE lease_until < statement_timestamp()"
    banks.until(lambda: down.one(lapsed) == len(events), "its lease runs out")
    return {Mismatch(Verdict.STUCK, down.group, event) for event in events}


def _write_in_flight(banks: Banks) -> None:
    """Write events that no relay has claimed, and events that one has just claimed."""
    banks.write(IN_FLIGHT, refused=0, accounts=banks.accounts[:ACCOUNTS])
    banks.upstream.execute(
        "UPDATE shield_outbox SET status = 'PROCESSING', attempts = 1, "
        "lease_token = gen_random_uuid(), "
        "lease_until = statement_timestamp() + interval '1 second' WHERE event_id IN "
        "(SELECT event_id FROM shield_outbox ORDER BY seq DESC LIMIT :half)",
        half=IN_FLIGHT // 2,
    )


def _repair(banks: Banks, reconciliation: ReconciliationRuns, planted: _Planted) -> None:
    """Repair the repairable events, and the parked ones when they are named, each of them once."""
    first = reconciliation.repair()
    wanted = {"hand over": 6, "release event": 2, "release attempt": 1, "raise rollback": 2}
    wanted |= {"publish again": 1}
    banks.expect(done_by(first) == wanted, f"the repair did {done_by(first)}")
    left = sum(entry["rows"] for entry in first["not_repairable"])
    others = len(planted.all - planted.repairable)
    banks.expect(left == others, f"{left} of {others} are left to operators")
    overtaken = reconciliation.repair("--verdict", "MISSING_DOWNSTREAM", *LATE_AND_RESTORED)
    wanted = {"hand over": len(planted.overtaken)}
    banks.expect(done_by(overtaken) == wanted, f"handed over: {done_by(overtaken)}")
    absent = reconciliation.repair("--verdict", "ABSENT_FROM_TOPIC")
    wanted = {"publish again": len(planted.absent)}
    banks.expect(done_by(absent) == wanted, f"published again: {done_by(absent)}")
    parked = reconciliation.repair("--verdict", "PARKED")
    events = {(found.group != banks.upstream.group, found.event_id) for found in planted.parked}
    banks.expect(sum(done_by(parked).values()) == len(events), f"replayed: {done_by(parked)}")
    banks.reconciled.repaired += sum(done_by(first, overtaken, absent, parked).values())


def _repair_in_vain(banks: Banks, reconciliation: ReconciliationRuns) -> None:
    """Repair the same run again, after everything is repaired."""
    before = contents(banks)
    named = ("ABSENT_FROM_TOPIC", "PARKED")
    repairs = [
        reconciliation.repair(*words)
        for words in ([], LATE_AND_RESTORED, *(["--verdict", name] for name in named))
    ]
    done = done_by(*repairs)
    banks.expect(not done, f"a second repair did {done}")
    banks.expect(contents(banks) == before, "a second repair changes nothing")
    banks.reconciled.repaired_again += sum(done.values())


def contents(banks: Banks) -> list[str]:
    """Return a digest of each table of events, and of the audits of repairs."""
    tables = ("shield_outbox", "shield_inbox", "shield_audit")
    digest = "SELECT md5(coalesce(string_agg(t::text, '' ORDER BY t::text), '')) FROM {} t"
    return [side.one(digest.format(table)) for side in banks.sides for table in tables]


def await_quiet(reconciliation: ReconciliationRuns) -> None:
    """Wait until all planted rows are older than the margin."""
    side = reconciliation.banks.upstream
    since = side.one("SELECT clock_timestamp()")
    quiet = "SELECT clock_timestamp() - make_interval(secs => :margin) > :since"
    reconciliation.banks.until(
        lambda: side.one(quiet, margin=reconciliation.margin_s, since=since),
        "the margin has passed",
    )


@contextmanager
def open_transfer(banks: Banks) -> Iterator[None]:
    """Keep a transfer's transaction open, after whose start nothing can be judged."""
    up = banks.upstream
    client = up.call(
        "long transaction",
        long_transactions.hold,
        up.url,
        str(banks.journal),
        banks.accounts[-1],
    )
    idle = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND state = 'idle in transaction'"
    )
    banks.until(lambda: up.one(idle) == 1, "the transaction is open")
    try:
        yield
    finally:
        client.send(signal.SIGCONT)
        client.finish()


def stop(side: Side, pattern: str) -> None:
    """Stop processes of a side in order."""
    for worker in side.workers:
        if worker.is_running and re.match(pattern, worker.name):
            worker.terminate()


def open_all(banks: Banks, **upstream: str) -> None:
    """Start relays and consumers, with the auditors."""
    up, down = banks.sides
    group = auditors_of(down.group)
    started = [
        up.launch("relay"),
        up.launch("consume", up.group, **upstream),
        *(down.launch(*words) for words in (("relay",), ("consume", down.group))),
        down.launch("consume", group),
    ]
    for worker in started:
        worker.await_ready()


def await_auditors(banks: Banks) -> None:
    """Wait until the auditors have entered all sent events, and removed the refused ones."""
    sent = "SELECT count(*) FROM shield_outbox WHERE tx_kind = :kind AND status = 'PROCESSED'"
    settled = (
        "SELECT count(*) FROM shield_inbox WHERE tx_kind = :kind "
        "AND consumer_group = :group AND settled_at IS NOT NULL"
    )
    down, group = banks.downstream, auditors_of(banks.downstream.group)
    for kind, side in (("COMMIT", banks.upstream), ("ROLLBACK", down)):
        banks.until(
            lambda kind=kind, side=side: (
                down.one(settled, kind=kind, group=group) >= side.one(sent, kind=kind)
            ),
            "the auditors keep up",
            60,
        )


FAULTS = (
    Fault(
        id="F34",
        name="planted discrepancies, rows in flight, repairs",
        run=discrepancies_found,
        setting=more_accounts,
    ),
)
