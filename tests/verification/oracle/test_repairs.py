"""Tests of repaired nights, ended at each step and restarted; then workers run."""

from __future__ import annotations

from random import Random

import pytest

from tests.verification.oracle import repair_campaign
from tests.verification.oracle.generate import a_history
from tests.verification.oracle.nights import mismatches
from tests.verification.oracle.repair_mutants import OF_REPAIRS
from tests.verification.oracle.repairs import RepairedNight
from tests.verification.oracle.spark_world import four_services

SEEDS = range(8)


@pytest.fixture(scope="module")
def services(databases):
    """Return the four services of all histories."""
    with four_services(databases) as opened:
        yield opened


def test_repairs_fix_what_they_may_and_change_nothing_else(services):
    tally = repair_campaign.run(services, SEEDS)
    assert tally.wrong == {}
    assert tally.repairs == len(SEEDS)
    assert tally.deaths > 0
    assert 0 < tally.left < tally.found


# Some mutants show in few histories, each of which is some seconds of work for a processor.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", OF_REPAIRS, ids=lambda mutant: mutant.name)
def test_defective_repair_is_detected(mutant, services):
    with mutant.applied():
        assert repair_campaign.search(services, range(20), stories=mutant.stories)


def test_what_a_repair_has_put_right_was_wrong_before(services):
    history = a_history(Random(3), stories=(OF_REPAIRS[0].stories))
    night = history.setting.nights[-1].as_named
    repaired = RepairedNight(history=history, night=night, services=services).run()
    assert mismatches(repaired.before) == mismatches(history.expected(night))
