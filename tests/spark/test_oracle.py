"""Tests of histories on Spark: each night is compared with the known truth."""

from __future__ import annotations

from random import Random

import pytest

from tests.verification.oracle.generate import a_history
from tests.verification.oracle.mutants import BY_RULES, Mutant
from tests.verification.oracle.nights import PythonNights
from tests.verification.oracle.repair_mutants import OF_REPAIRS
from tests.verification.oracle.spark_mutants import ON_SPARK
from tests.verification.oracle.spark_nights import SparkNights, counted
from tests.verification.oracle.spark_world import four_services
from tests.verification.oracle.topic_mutants import OF_TOPICS, TOPICS_ON_SPARK

pytestmark = pytest.mark.thorough

MUTANTS = (*BY_RULES, *OF_TOPICS, *ON_SPARK, *TOPICS_ON_SPARK, *OF_REPAIRS)

SEEDS = range(6)
RECEIVED_FIRST = "for the first time, so that earlier ones are expected there too"


@pytest.fixture(scope="module")
def services(databases):
    """Return the four services of all histories."""
    with four_services(databases) as opened:
        yield opened


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("seed", SEEDS)
def test_each_night_reports_what_is_wrong_and_nothing_else(seed, nights, services):
    history = a_history(Random(seed))
    found = SparkNights(history=history, services=services, nights=nights, name=str(seed)).run()
    for night, by_rules in zip(found, PythonNights(history=history).run(), strict=True):
        assert night.said.wrong == []
        if night.said.is_full and any(RECEIVED_FIRST in why for why in night.said.because):
            # The nights in Python do not judge everything because of it.
            continue
        assert night.said.is_full is by_rules.is_full, night.findings.full_because
        assert night.counts == counted(by_rules.found)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_function_that_a_mutant_replaces_exists(mutant: Mutant):
    """A moved function would otherwise break the search for a mutant only when it runs."""
    with mutant.applied():
        assert mutant.name
