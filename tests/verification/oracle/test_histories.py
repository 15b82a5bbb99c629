"""Tests of small histories, by the rules in Python: each night reports exactly the mismatches."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle import campaign
from tests.verification.oracle.generate import STORIES, a_history
from tests.verification.oracle.mutants import BY_RULES
from tests.verification.oracle.nights import PythonNights, mismatches
from tests.verification.oracle.topic_mutants import OF_TOPICS

MANY = 300


@settings(max_examples=MANY, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(st.randoms(use_true_random=False))
def test_each_night_reports_all_mismatches_and_nothing_else(random):
    for said in PythonNights(history=a_history(random)).run():
        assert said.wrong == []


@pytest.fixture(scope="module")
def many():
    """Return the results of the nights of many histories."""
    return [
        said for seed in range(MANY) for said in PythonNights(history=a_history(Random(seed))).run()
    ]


def test_histories_have_all_kinds_of_mismatches(many):
    planted = {verdict for said in many for verdict in said.truth.values()}
    assert planted >= {v for v in Verdict if v.is_mismatch}


def test_most_mismatches_are_found_by_further_runs_too(many):
    further = [said for said in many if not said.is_full]
    assert len(further) > len(many) / 6
    assert sum(len(mismatches(said.truth)) for said in further) > 50


@pytest.mark.parametrize("story", STORIES)
def test_each_story_is_played_alone(story):
    for seed in range(20):
        history = a_history(Random(seed), stories=(story,))
        assert [said.wrong for said in PythonNights(history=history).run() if said.wrong] == []


def test_a_history_comes_from_its_seed_alone():
    one, same, other = (a_history(Random(seed)) for seed in (1, 1, 2))
    assert one.claims == same.claims
    assert one.lives == same.lives
    assert one.lives != other.lives


@pytest.mark.parametrize("mutant", [*BY_RULES, *OF_TOPICS], ids=lambda mutant: mutant.name)
def test_defective_rules_are_detected(mutant):
    with mutant.applied():
        assert campaign.search(campaign.by_rules, range(MANY), stories=mutant.stories)
