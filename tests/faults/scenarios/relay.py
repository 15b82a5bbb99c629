"""F9 to F16: what happens to relays."""

from __future__ import annotations

from tests.faults.banks import Banks
from tests.faults.failpoints import Failpoint
from tests.faults.matrix import Fault

STEPS_OF_A_PASS = (
    ("claim", "after"),  # claimed
    ("publish", "before"),
    ("publish", "after"),  # acknowledged, not marked
    ("settle", "before"),
    ("settle", "after"),
)


def killed_at_each_step(banks: Banks) -> None:
    """A relay dies at each step of its pass; the next one takes its shards over."""
    banks.downstream.relay()
    for side in banks.sides:
        side.consume()
    banks.write(100)
    for step, when in STEPS_OF_A_PASS:
        banks.upstream.mark.unlink(missing_ok=True)
        point = Failpoint(step=step, when=when, action="exit")
        relay = banks.upstream.relay(**banks.upstream.broken_at(point))
        banks.struck(banks.upstream)
        relay.kill()
        banks.write(20)
    banks.upstream.relay()


FAULTS = (Fault(id="F9", name="relay killed at each step of its pass", run=killed_at_each_step),)
