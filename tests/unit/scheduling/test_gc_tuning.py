"""The garbage collector of a process in which a worker runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from shieldtx.scheduling.gc_tuning import few_collections


@pytest.fixture(autouse=True)
def frozen_again() -> Iterator[None]:
    yield
    # What the run of all tests has frozen.
    gc.freeze()


def test_a_worker_looks_seldom_and_at_nothing_older_and_leaves_no_trace() -> None:
    gc.unfreeze()
    threshold = gc.get_threshold()
    with few_collections():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > threshold[0]
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == threshold


def test_what_a_host_has_frozen_stays_frozen_and_nothing_else_is() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    more = [[] for _ in range(10_000)]
    with few_collections():
        assert gc.get_freeze_count() <= frozen
    assert 0 < gc.get_freeze_count() <= frozen
    assert more


def test_of_two_workers_in_one_process_the_last_one_to_end_restores_it() -> None:
    threshold = gc.get_threshold()
    first, second = few_collections(), few_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] > threshold[0]
    second.__exit__(None, None, None)
    assert gc.get_threshold() == threshold
