"""Mutants: deliberate defects of the tests. A test that catches none of them proves nothing.

Each replaces a function of shieldtx in the processes of a run.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.verification.faults.mutants.banks import IN_BANKS
from tests.verification.faults.mutants.breaker import OF_THE_BREAKER
from tests.verification.faults.mutants.checks import OF_CHECKS
from tests.verification.faults.mutants.clients import OF_CLIENTS
from tests.verification.faults.mutants.connections import OF_CONNECTIONS
from tests.verification.faults.mutants.consumers import OF_CONSUMERS
from tests.verification.faults.mutants.half_messages import OF_HALF_MESSAGES
from tests.verification.faults.mutants.mutant import Mutant
from tests.verification.faults.mutants.reconciliation import IN_RECONCILIATION
from tests.verification.faults.mutants.sizes import OF_SIZES
from tests.verification.faults.mutants.takeovers import OF_TAKEOVERS
from tests.verification.faults.mutants.workers import OF_WORKERS

MUTANTS: Mapping[str, Mutant] = (
    IN_BANKS
    | IN_RECONCILIATION
    | OF_HALF_MESSAGES
    | OF_CONSUMERS
    | OF_CONNECTIONS
    | OF_CLIENTS
    | OF_SIZES
    | OF_CHECKS
    | OF_WORKERS
    | OF_TAKEOVERS
    | OF_THE_BREAKER
)

__all__ = ["MUTANTS", "Mutant"]
