"""What an external fault must not cost: processes, and attempts of events."""

from __future__ import annotations

import signal

from tests.verification.faults.banks import Banks

SERVICES = {"relay", "consume"}
PATIENCE_S = 90.0
"""How long to wait on a busy machine for what is fast on any other."""

END_WITHIN_S = 30.0
"""More than their own SHIELDTX_STOP_TIMEOUT, after which they end with a failure."""


def expect_all_to_end_in_order(banks: Banks) -> None:
    """Stop every relay and consumer: expect that none has died before, and that none hangs.

    Workers that the scenario killed do not count; workers that it asked to end count too.
    """
    services = [
        (side.name, worker)
        for side in banks.sides
        for worker in side.workers
        if worker.name.split()[0] in SERVICES and worker.exit_status != -signal.SIGKILL
    ]
    for _, worker in services:
        worker.send(signal.SIGTERM)
    for bank, worker in services:
        worker.join(END_WITHIN_S)
        banks.expect(
            worker.exit_status == 0,
            f"{worker.name} of {bank} ends when it is asked to, and not before: exit status "
            f"{worker.exit_status}\n{worker.tail(5)}",
        )


def expect_no_attempt_burnt(banks: Banks) -> None:
    """Expect that each event was published at its first attempt, or has not used it."""
    for side in banks.sides:
        burnt = side.one("SELECT count(*) FROM shield_outbox WHERE attempts > 1")
        banks.expect(burnt == 0, f"{burnt} events of {side.name} paid for the outage")
        failed = side.outbox().get("FAILED", 0)
        banks.expect(failed == 0, f"{failed} events of {side.name} failed because of the outage")
