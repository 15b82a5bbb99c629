"""Mutant runs of the reconciliation: one run or one repair each, over few rows."""

from __future__ import annotations

from datetime import timedelta

from shieldtx.reconcile.verdicts import Verdict
from tests.verification.faults import damage
from tests.verification.faults.bank import auditors_of
from tests.verification.faults.banks import Banks
from tests.verification.faults.damage import SavedRows
from tests.verification.faults.reconciliation_outcomes import Mismatch
from tests.verification.faults.reconciliation_runs import (
    LATE_AND_RESTORED,
    ReconciliationRuns,
    done_by,
)
from tests.verification.faults.scenarios.reconciliation import (
    await_auditors,
    await_quiet,
    open_all,
    stop,
)

_WIDE = timedelta(hours=1)
"""A margin that is longer than a mutant run."""

STRUCK_OUT = "what was taken back is not entered again"
UNDONE = "what its service has undone is not replayed"

_ALL = (
    *("--verdict", Verdict.MISSING_DOWNSTREAM.value, *LATE_AND_RESTORED),
    *("--verdict", Verdict.ABSENT_FROM_TOPIC.value),
)
"""Options for what a repair otherwise leaves: overtaken events, groups that lack all events."""


def all_in_flight(banks: Banks) -> None:
    """No relay runs, and rows that were just written must not be reported as stuck."""
    banks.open()
    banks.write(20)
    banks.drain()
    stop(banks.upstream, "relay")
    banks.write(4)
    ReconciliationRuns(banks=banks, margin_s=_WIDE.total_seconds()).judge(set())
    banks.upstream.relay()


def a_changed_payload(banks: Banks) -> None:
    """Both sides have their row of one event alone, with different payloads."""
    reconciliation = ReconciliationRuns(banks=banks)
    banks.open()
    banks.write(20, refused=0.0)
    banks.drain()
    saved = SavedRows(banks)
    planted = saved.falsify(1)
    await_quiet(reconciliation)
    reconciliation.judge(planted)
    saved.undo()


def repaired_and_done(banks: Banks) -> None:
    """Events that a group or the broker lost are delivered once, to the groups that lack them."""
    reconciliation = ReconciliationRuns(banks=banks, with_auditors=True, with_topics=True)
    groups = reconciliation.receiving
    *others, last = banks.accounts
    open_all(banks)
    banks.write(20, refused=0.0, accounts=others)
    banks.drain()
    await_auditors(banks)
    stop(banks.upstream, "relay")
    forgotten = SavedRows(banks).forget_by_auditors(1)
    lost = damage.lose_records(banks, [last], groups)
    await_quiet(reconciliation)
    reconciliation.judge(forgotten | lost | damage.on_topic(Verdict.ABSENT_FROM_TOPIC, lost))
    banks.reconciled.repaired += sum(done_by(reconciliation.repair(*_ALL)).values())
    banks.upstream.relay()
    banks.drain()
    banks.reconciled.repaired_again += sum(done_by(reconciliation.repair(*_ALL)).values())


def struck_out_and_lost(banks: Banks) -> None:
    """The auditors lose an event that they entered and, after the bank's refusal, removed.

    Their books stay, so that a repair has nothing to do.
    """
    reconciliation = ReconciliationRuns(banks=banks, with_auditors=True)
    down, group = banks.downstream, auditors_of(banks.downstream.group)
    entries = "SELECT coalesce(sum(entry), 0) FROM audit WHERE id = ANY(:ids)"
    open_all(banks)
    stop(down, "relay")
    events = damage.transfer_each(banks, banks.accounts[:1], refuse="at once")
    banks.until(lambda: down.one(entries, ids=events) == 1, "it is entered")
    down.relay()
    banks.until(lambda: down.one(entries, ids=events) == 0, "it is struck out")
    banks.drain()
    down.tamper(
        "DELETE FROM shield_inbox WHERE event_id = ANY(:ids) AND consumer_group = :group",
        ids=events,
        group=group,
    )
    await_quiet(reconciliation)
    reconciliation.judge({Mismatch(Verdict.MISSING_DOWNSTREAM, group, event) for event in events})
    done = done_by(reconciliation.repair(*_ALL))
    banks.drain()
    entered = down.one(entries, ids=events)
    banks.expect(entered == 0 and not done, f"{STRUCK_OUT}: {entered} entries, {done}")


def undone_and_parked(banks: Banks) -> None:
    """A transfer fails permanently, and its row states that no attempt can have delivered it.

    Its local rollback would then have run. The rollback did not run; an operator replays the
    transfer in the end, so that the books are right.
    """
    reconciliation, up = ReconciliationRuns(banks=banks, with_auditors=True), banks.upstream
    unconfirmed = "UPDATE shield_outbox SET unconfirmed = :unconfirmed WHERE status = 'FAILED'"
    open_all(banks)
    stop(up, "relay")
    parked = damage.reject(banks, banks.accounts[:1], reconciliation.receiving)
    up.execute(unconfirmed, unconfirmed=False)
    await_quiet(reconciliation)
    reconciliation.judge(parked)
    done = done_by(reconciliation.repair("--verdict", Verdict.PARKED.value))
    banks.expect(not done, f"{UNDONE}: {done}")
    up.execute(unconfirmed, unconfirmed=True)
    reconciliation.repair("--verdict", Verdict.PARKED.value)
    up.relay()
    banks.drain()
