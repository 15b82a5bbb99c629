"""Mutant runs of the reconciliation: one run or one repair each, over few rows."""

from __future__ import annotations

from datetime import timedelta

from shieldtx.reconcile.verdicts import Verdict
from tests.verification.faults import damage
from tests.verification.faults.banks import Banks
from tests.verification.faults.damage import SavedRows
from tests.verification.faults.reconciliation_runs import ReconciliationRuns, done_by
from tests.verification.faults.scenarios.reconciliation import (
    await_auditors,
    await_quiet,
    open_all,
    stop,
)

_WIDE = timedelta(hours=1)
"""A margin that is longer than a mutant run."""

_BY_NAME = tuple(
    word
    for verdict in (Verdict.MISSING_DOWNSTREAM, Verdict.ABSENT_FROM_TOPIC)
    for word in ("--verdict", verdict.value)
)
"""What a repair leaves to a person otherwise: later events of the key, groups that have it all."""


def all_in_flight(banks: Banks) -> None:
    """No relay runs, and what has just been written is not to be called stuck."""
    banks.open()
    banks.write(20)
    banks.drain()
    stop(banks.upstream, "relay")
    banks.write(4)
    ReconciliationRuns(banks=banks, margin_s=_WIDE.total_seconds()).judge(set())
    banks.upstream.relay()


def a_changed_payload(banks: Banks) -> None:
    """Of one event alone both sides have their row, and not the same payload."""
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
    """What a group or the broker has lost comes back, to those who lack it, and once."""
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
    banks.reconciled.repaired += sum(done_by(reconciliation.repair(*_BY_NAME)).values())
    banks.upstream.relay()
    banks.drain()
    banks.reconciled.repaired_again += sum(done_by(reconciliation.repair(*_BY_NAME)).values())
