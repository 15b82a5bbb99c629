"""F53: SystemExit in hooks, handlers and compensations, raised by an application or extension."""

from __future__ import annotations

from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import INTERRUPTED, Failpoint
from tests.verification.faults.matrix import Fault
from tests.verification.faults.side import Side

IN_A_RELAY = (
    ("claim", "after"),
    ("publish", "before"),
    ("publish", "after"),
    ("settle", "before"),
    ("settle", "after"),
)
IN_A_CONSUMER = (
    ("receive", "after"),
    ("handler", "before"),
    ("effect", "after"),
    ("offsets", "before"),
)
SECOND = 2
"""The second occurrence, so that the first pass has committed work."""


def interrupted(banks: Banks) -> None:
    """Relays and consumers are interrupted at each step; each ends, and the next continues."""
    banks.open(but="upstream relay")
    one_account = banks.accounts[:1]
    banks.write(60, accounts=one_account)
    for step, when in IN_A_RELAY:
        point = Failpoint(step=step, when=when, action="interrupt", nth=SECOND)
        _expect_an_end(banks, banks.upstream, ("relay",), point, SHIELDTX_RELAY_BATCH_SIZE="4")
        banks.write(5, accounts=one_account)
    banks.upstream.relay()
    banks.drain()
    _stop(banks, banks.downstream)
    for step, when in IN_A_CONSUMER:
        banks.write(5, accounts=one_account)
        point = Failpoint(step=step, when=when, action="interrupt")
        _expect_an_end(banks, banks.downstream, ("consume", banks.downstream.group), point)
        noted = "SELECT count(*) FROM shield_inbox WHERE last_error LIKE '%SystemExit%'"
        if step == "handler":
            banks.expect(banks.downstream.one(noted) > 0, "the row keeps the reason")
    banks.downstream.consume()


def _expect_an_end(
    banks: Banks, side: Side, words: tuple[str, ...], point: Failpoint, **environment: str
) -> None:
    side.mark.unlink(missing_ok=True)
    worker = side.launch(*words, **environment, **side.broken_at(point))
    banks.struck(side)
    ended = worker.join(20) and worker.exit_status == INTERRUPTED
    banks.expect(ended, f"the process ends with the status of its interruption {point}")
    banks.expect(worker.has_logged("error_type=SystemExit"), f"it logs its interruption {point}")


def _stop(banks: Banks, side: Side) -> None:
    for worker in side.workers:
        if worker.is_running and worker.name.startswith("consume"):
            banks.expect(worker.terminate() == 0, "the consumer ends")


FAULTS = (Fault(id="F53", name="SystemExit in the middle of passes", run=interrupted),)
