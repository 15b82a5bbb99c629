"""Mutants: deliberate defects, for the tests only. A proof that lets one of them live is no proof.

Each is put into processes in the place of a function of shieldtx.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.verification.faults.mutants.banks import IN_BANKS
from tests.verification.faults.mutants.checks import OF_CHECKS
from tests.verification.faults.mutants.clients import OF_CLIENTS
from tests.verification.faults.mutants.connections import OF_CONNECTIONS
from tests.verification.faults.mutants.consumers import OF_CONSUMERS
from tests.verification.faults.mutants.half_messages import OF_HALVES
from tests.verification.faults.mutants.mutant import Mutant
from tests.verification.faults.mutants.reconciliation import AT_NIGHT
from tests.verification.faults.mutants.sizes import OF_SIZES

MUTANTS: Mapping[str, Mutant] = (
    IN_BANKS
    | AT_NIGHT
    | OF_HALVES
    | OF_CONSUMERS
    | OF_CONNECTIONS
    | OF_CLIENTS
    | OF_SIZES
    | OF_CHECKS
)

__all__ = ["MUTANTS", "Mutant"]
