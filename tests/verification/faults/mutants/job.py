"""Spark's job with a mutant in it; see `reconciliation`."""

from __future__ import annotations

import sys

from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.reconciliation import named_by_environment

if __name__ == "__main__":
    # First, because the job's modules import names from other modules.
    named_by_environment().apply(Breaker())
    from spark.__main__ import main

    sys.exit(main(sys.argv[1:]))
