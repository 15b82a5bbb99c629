"""Mutant runs of clients."""

from __future__ import annotations

from tests.verification.faults.bank import conflicts
from tests.verification.faults.banks import Banks


def late_in_two_phases(banks: Banks) -> None:
    """Clients take money while their sessions are already committing, in two phases."""
    banks.open()
    banks.upstream.call(
        "late",
        conflicts.take_while_committing,
        banks.upstream.url,
        str(banks.journal),
        banks.accounts,
    ).finish()
