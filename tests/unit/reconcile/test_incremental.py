"""From where the next run may start."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from shieldtx.reconcile.incremental import watermarks_of
from shieldtx.reconcile.window import Window
from tests.support.sample_findings import BACK, NOON, PAIR, bounds, findings

MARGIN = timedelta(minutes=15)


@pytest.mark.parametrize(
    ("watermark", "stored"),
    [
        (NOON - timedelta(hours=1), NOON - timedelta(hours=1)),
        # The clocks of the databases are ahead of that of the machine of the run.
        (NOON + timedelta(hours=2), NOON - MARGIN),
    ],
)
def test_a_watermark_is_no_later_than_by_the_clock_of_the_run(watermark, stored):
    found = findings(bounds=(bounds(PAIR, watermark=watermark),), margin=MARGIN)
    assert watermarks_of(found) == {"orders": stored, "stock": stored}


def test_the_earliest_stream_of_a_service_decides():
    early = NOON - timedelta(hours=3)
    blind = replace(bounds(PAIR), downstream="mail", window=Window(obstacle="blind"))
    found = findings(bounds=(bounds(PAIR), bounds(BACK, watermark=early), blind))
    assert watermarks_of(found) == {"orders": early, "stock": early}
