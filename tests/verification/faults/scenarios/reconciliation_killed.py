"""F35: reconciliations and repairs that are killed, overlap, see late data, or much data."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from uuid import UUID

from sqlalchemy import text

from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.verdicts import Verdict
from tests.support.repair_process import PLACES
from tests.verification.faults import bulk, damage
from tests.verification.faults.bank import TRANSFERRED
from tests.verification.faults.banks import Banks
from tests.verification.faults.damage import Found
from tests.verification.faults.matrix import Fault
from tests.verification.faults.reconciliation_outcomes import Mismatch
from tests.verification.faults.reconciliation_runs import (
    ReconciliationRun,
    ReconciliationRuns,
    done_by,
)
from tests.verification.faults.scenarios.reconciliation import (
    await_quiet,
    contents,
    more_accounts,
    open_transfer,
    stop,
)
from tests.verification.faults.workers import Worker
from tests.verification.faults.world import ACCOUNTS

LOST, CLAIMED, PENDING = 6, 2, 2
BULK = 1_000_000
BULK_WITHIN_S = 120.0
"""Limit for the run alone, on a busy machine."""


def killed_and_twice_at_once(banks: Banks) -> None:
    """Runs and repairs are killed and overlap; the next run judges late data."""
    reconciliation = ReconciliationRuns(banks=banks)
    planted = _plant(banks)
    await_quiet(reconciliation)
    result = _runs_one_at_a_time(banks, reconciliation)
    reconciliation.expect_exact(result, planted)
    _repairs_that_die(banks, reconciliation)
    _repairs_at_once(banks, reconciliation, planted)
    banks.open()
    banks.drain()
    _late(banks, reconciliation)


def _plant(banks: Banks) -> Found:
    """Damage rows for several batches of a repair, in both databases; all workers end."""
    down = banks.downstream
    accounts = banks.accounts[ACCOUNTS:]
    banks.open()
    banks.write(60, refused=0.1, accounts=banks.accounts[:ACCOUNTS])
    banks.drain()
    stop(down, "relay")
    pending = damage.leave_rollbacks_pending(banks, accounts[:PENDING])
    for side in banks.sides:
        side.stop_all()
    claimed = accounts[PENDING : PENDING + CLAIMED]
    lost = accounts[PENDING + CLAIMED : PENDING + CLAIMED + LOST]
    return (
        pending
        | damage.leave_claimed(banks, claimed, [down.group])
        | damage.lose_records(banks, lost, [down.group])
    )


def _runs_one_at_a_time(banks: Banks, reconciliation: ReconciliationRuns) -> ReconciliationRun:
    """A run excludes other runs, and a killed run only until its lease runs out."""
    name, killed = reconciliation.begin()
    log = reconciliation.log_of(name)
    banks.until(lambda: log.exists() and log.stat().st_size, "Spark is running", 60)
    jobs = _children(killed)
    _expect_refused(banks, reconciliation)
    killed.kill()
    banks.until(lambda: not any(map(_is_alive, jobs)), "its Spark ends with it", 30)
    _expect_refused(banks, reconciliation)
    # As if the two minutes of its lease had passed.
    banks.upstream.execute(
        "UPDATE shield_reconcile_run SET lease_until = statement_timestamp() WHERE outcome IS NULL"
    )
    banks.expect(reconciliation.runs()[0]["outcome"] == "DIED", "it is listed as dead")
    name, run = reconciliation.begin()
    working = (
        "SELECT count(*) FROM shield_reconcile_run WHERE outcome IS NULL AND lease_until > now()"
    )
    banks.until(lambda: banks.upstream.one(working) == 1, "the next one is running", 60)
    _expect_refused(banks, reconciliation)
    result = reconciliation.end(name, run)
    outcomes = [stored["outcome"] for stored in reconciliation.runs()]
    banks.expect(outcomes == ["MISMATCHES", "ABANDONED"], f"the runs ended with {outcomes}")
    return result


def _expect_refused(banks: Banks, reconciliation: ReconciliationRuns) -> None:
    """Start another run, which reports the run that excludes it and ends."""
    _, run = reconciliation.begin()
    banks.expect(run.join(60), "a run that has to wait does not")
    banks.expect(run.exit_status == RunOutcome.ERROR, f"it ended with {run.exit_status}")
    who = banks.upstream.one("SELECT who FROM shield_reconcile_run WHERE outcome IS NULL")
    banks.expect(run.has_logged(f"is running: {who} started it at "), f"its log: {run.tail()}")


def _repairs_that_die(banks: Banks, reconciliation: ReconciliationRuns) -> None:
    """Kill repairs at each position of a batch: a batch is repaired completely, or not at all."""
    for place in PLACES:
        before = contents(banks)
        dying = reconciliation.begin_repair_that_dies(place)
        banks.expect(dying.join(60) and dying.exit_status == -SIGKILL, f"it dies {place}")
        is_done = place == "between two batches"
        changed = contents(banks) != before
        banks.expect(changed == is_done, f"killed {place}, a repair left a batch half done")


def _repairs_at_once(banks: Banks, reconciliation: ReconciliationRuns, planted: Found) -> None:
    """Let two repairs run concurrently; each row is repaired once."""
    before = _audited(banks)
    banks.expect(0 < len(before) < len(planted), f"{len(before)} rows are repaired so far")
    together = [reconciliation.begin_repair() for _ in range(2)]
    done = done_by(*(reconciliation.end_repair(repair) for repair in together))
    repaired = _audited(banks)
    banks.expect(set(repaired) == {found.event_id for found in planted}, "all rows are repaired")
    banks.expect(set(repaired.values()) == {1}, f"each of it once: {repaired.most_common(3)}")
    banks.expect(
        sum(done.values()) == len(planted) - len(before), f"both together have done {done}"
    )
    banks.reconciled.repaired += len(repaired)
    before_again = contents(banks)
    again = done_by(reconciliation.repair())
    banks.expect(not again, f"a further repair did {again}")
    banks.expect(contents(banks) == before_again, "a further repair changes nothing")
    banks.reconciled.repaired_again += sum(again.values())


def _late(banks: Banks, reconciliation: ReconciliationRuns) -> None:
    """The next run judges what commits after a run that could not read it, however old it is."""
    up, down = banks.sides
    stop(up, "relay")
    await_quiet(reconciliation)
    with open_transfer(banks):
        (lost,) = damage.transfer_each(banks, banks.accounts[-2:-1])
        with _settling(banks, lost):
            result = reconciliation.judge(set())
        flying = result.totals.get(Verdict.IN_FLIGHT)
        banks.expect(flying == 1, f"what is about to be settled is in flight: {result.totals}")
    credited = down.one("SELECT count(*) FROM credit")
    up.relay()
    banks.until(
        lambda: down.one("SELECT count(*) FROM credit") == credited + 1, "the late one arrives"
    )
    await_quiet(reconciliation)
    next_ = reconciliation.judge({Mismatch(Verdict.MISSING_DOWNSTREAM, down.group, lost)})
    runs = reconciliation.runs()
    modes = [stored["mode"] for stored in runs[:2]]
    banks.expect(modes == ["INCREMENTAL", "FULL"], f"the last runs were {modes}")
    banks.expect(runs[1]["good"], "the next one could start from the former's watermarks")
    matched = next_.totals.get(Verdict.MATCHED, 0)
    banks.expect(matched >= 1, f"the late transfer was judged: {next_.totals}")
    done = done_by(reconciliation.repair())
    banks.expect(done == {"hand over": 1}, f"the repair did {done}")
    banks.reconciled.repaired += sum(done.values())


@contextmanager
def _settling(banks: Banks, event: UUID) -> Iterator[None]:
    """Note that a record was acknowledged, which is lost, and commit that late."""
    with banks.upstream.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.execute(text(damage.LOSE), {"ids": [event]})
        yield


def _audited(banks: Banks) -> Counter[UUID]:
    """Return how often the audit of repairs lists each event."""
    details = [
        json.loads(row.detail)
        for side in banks.sides
        for row in side.rows("SELECT detail FROM shield_audit WHERE action = 'repair'")
    ]
    return Counter(
        UUID(event)
        for detail in details
        for events in detail["events"].values()
        for event in events
    )


def _children(worker: Worker) -> list[int]:
    """Return the child processes of a process."""
    tasks = Path(f"/proc/{worker.pid}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


def a_million_rows(banks: Banks) -> None:
    """Among a million rows in order, a run finds the few mismatches in bounded time."""
    reconciliation = ReconciliationRuns(banks=banks, topics=[TRANSFERRED, bulk.TOPIC])
    banks.open()
    banks.write(60, refused=0.1)
    banks.drain()
    bulk.insert(banks, BULK)
    planted = bulk.damage(banks)
    result = reconciliation.judge(planted)
    matched = result.totals.get(Verdict.MATCHED, 0)
    banks.expect(matched > BULK - 100, f"all others are in order: {result.totals}")
    seconds = json.loads((banks.folder / result.name / "summary.json").read_text())["seconds"]
    banks.expect(seconds < BULK_WITHIN_S, f"the run took {seconds:.0f} s")
    bulk.delete(banks)


FAULTS = (
    Fault(
        id="F35a",
        name="reconciliation and repair killed, twice at once, late data",
        run=killed_and_twice_at_once,
        setting=more_accounts,
    ),
    Fault(id="F35b", name="reconciliation of a million rows", run=a_million_rows),
)
