"""When the next pass of a consumer follows at once."""

from __future__ import annotations

from collections import Counter

import pytest

from shieldtx.consumer.consumer import ConsumerResult
from shieldtx.ports.inbox import AttemptOutcome


@pytest.mark.parametrize(
    ("done", "follows"),
    [
        (ConsumerResult(), False),
        (ConsumerResult(records=1), True),
        (ConsumerResult(outcomes=Counter({AttemptOutcome.RETRIED: 1})), True),
        (ConsumerResult(outcomes=Counter({AttemptOutcome.BLOCKED: 2})), False),
    ],
    ids=["nothing", "records", "an attempt", "blocked events only"],
)
def test_next_pass_follows_at_once_after_work(done: ConsumerResult, follows: bool) -> None:
    assert done.more is follows
