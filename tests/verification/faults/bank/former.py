"""A former release of the upstream bank, from before it had transfers."""

from __future__ import annotations

from tests.verification.faults.bank.breakable import BreakableShield

shield = BreakableShield.from_env()
