"""The garbage collector of a process in which a worker runs."""

from __future__ import annotations

import gc
import subprocess
import sys

from shieldtx.scheduling.gc_tuning import few_collections

IN_A_PROCESS_OF_ITS_OWN = """
import gc
from shieldtx.scheduling.gc_tuning import few_collections
before = gc.get_threshold(), gc.get_freeze_count()
with few_collections():
    assert gc.get_freeze_count() > 5_000, gc.get_freeze_count()
    assert len(gc.get_objects()) < 1_000, len(gc.get_objects())
    assert gc.get_threshold()[0] > before[0][0]
assert gc.get_threshold() == before[0]
assert gc.get_freeze_count() <= before[1]
"""


def test_worker_collects_seldom_and_restores_the_settings() -> None:
    subprocess.run([sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN], check=True)


def test_objects_frozen_by_a_host_stay_frozen_without_others() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    more = [[] for _ in range(10_000)]
    with few_collections():
        assert gc.get_freeze_count() <= frozen
    assert 0 < gc.get_freeze_count() <= frozen
    assert more


def test_host_without_garbage_collection_keeps_it_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with few_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
