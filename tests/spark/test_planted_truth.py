"""Tests of whole runs over three services with planted truth, from twenty seeds."""

from __future__ import annotations

from collections import Counter

import pytest

from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.rules import PAIRS
from tests.spark.running import reconciled
from tests.spark.scenarios import plant
from tests.spark.world import World, found_rows, request

EVENTS = 120
"""Events of each seed, in addition to those of its scenarios."""
SEEDS = {
    # (push down, groups declared): the seeds that are planted together
    (True, True): range(5),
    (True, False): range(5, 10),
    (False, True): range(10, 15),
    (False, False): range(15, 20),
}


def counts_of(findings):
    counts = Counter()
    for count in findings.counts:
        pair = count.pair
        key = (pair.kind.value, pair.upstream, pair.downstream, pair.group, count.verdict.value)
        counts[key] += count.rows
    return counts


def precision_and_recall(found, truth):
    right = len(found.items() & truth.items())
    return right / len(found), right / len(truth)


@pytest.mark.parametrize(("push_down", "declared"), SEEDS)
def test_a_run_finds_all_that_was_planted_and_nothing_else(
    push_down, declared, services, tmp_path, spark, jdbc_jar
):
    world = World(services, declared=declared)
    with world.held():
        for seed in SEEDS[push_down, declared]:
            plant(world, seed=seed, events=EVENTS)
        world.flush()
        findings = reconciled(spark, request(world, tmp_path, jdbc_jar, push_down=push_down))
    found, truth = found_rows(OutputFolder(path=tmp_path)), world.listed
    wrong = {key: (found.get(key), truth.get(key)) for key in found.keys() | truth.keys()}
    wrong = {key: pair for key, pair in wrong.items() if pair[0] is not pair[1]}
    assert wrong == {}, "found, and planted"
    assert precision_and_recall(found, truth) == (1.0, 1.0)
    assert counts_of(findings) == world.counts
    assert findings.outcome is RunOutcome.MISMATCHES
    assert findings.obstacles == ()
    assert any("legacy" in sentence for sentence in findings.left_out)


def test_every_verdict_on_a_pair_is_among_what_is_planted(services):
    world = World(services, declared=True)
    with world.held():
        plant(world, seed=0, events=0)
    assert set(world.truth.values()) == set(PAIRS.verdicts)


def test_a_world_comes_from_its_seed_alone(services):
    # Ids are made of times, and times depend on the start of the transactions.
    began = dict.fromkeys([service.name for service in services], services[0].now())

    def planted(seed):
        world = World(services, declared=True)
        world.began = began
        plant(world, seed=seed, events=20)
        return world.truth

    assert planted(3) == planted(3)
    assert planted(3) != planted(4)
