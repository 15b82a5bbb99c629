"""The real services on a simulated database and broker: deterministic, from a seed."""

from tests.verification.simulation.campaign import Finding, SimulationResult, replay, run
from tests.verification.simulation.mutants import MUTANTS

__all__ = ["MUTANTS", "Finding", "SimulationResult", "replay", "run"]
