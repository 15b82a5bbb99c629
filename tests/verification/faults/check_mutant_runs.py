"""Mutant runs of the checks that a worker makes when it starts."""

from __future__ import annotations

from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.scenarios.switch_over import carried_over


def sequences_unchecked(banks: Banks) -> None:
    """A relay starts after the sequences restarted, and clients write before its first claim."""
    carried_over(banks)
    up = banks.upstream
    up.launch("relay", **up.broken_at(Failpoint(step="claim", when="before", action="freeze")))
    banks.struck(up)
    banks.write(10, accounts=banks.accounts[:2])
    up.wake.touch()
    banks.open(but="upstream relay")
