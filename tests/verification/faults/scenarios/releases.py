"""F37: two releases of a service run together, and one does not know an event type."""

from __future__ import annotations

from tests.verification.faults.bank import by_hand
from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault

FORMER = {"SHIELDTX_APP": "tests.verification.faults.bank.former:shield"}
UNKNOWN = "this release does not declare the event type"


def rolling_deployment(banks: Banks) -> None:
    """The new release already writes; its relay starts late, next to the former release's relay.

    An event that the broker refuses permanently fails, and only the new release runs its local
    rollback.
    """
    up = banks.upstream
    banks.open(but="upstream relay")
    former = up.relay(**FORMER)
    small, large = banks.accounts[:-3], banks.accounts[-3:]
    up.call("oversize", by_hand.transfer_too_much, *large).finish()
    banks.write(60, accounts=small)
    banks.until(lambda: up.outbox() == {"PROCESSED": 60, "INIT": 3}, "the former release sends")
    banks.until(lambda: up.one(_LEFT) == 3, "what it cannot decide about waits with its reason")
    load = banks.begin_writing(60, pause=0.05, accounts=small)
    up.relay()
    load.finish()
    banks.expect("FAILED" not in up.outbox(), "nothing has failed while both ran")
    former.terminate()
    # Instead of waiting for the deferral of an event of an unknown type.
    up.execute("UPDATE shield_outbox SET due_at = now() WHERE settled_at IS NULL")
    banks.drain()
    banks.expect(up.outbox() == {"PROCESSED": 120, "FAILED": 3}, f"the end: {up.outbox()}")
    # An event with which a relay lost its lease may have been delivered, so an operator decides
    # about it. This happens on a machine that stops a relay for longer than its lease.
    certain = up.one(
        "SELECT count(*) FROM shield_outbox WHERE status = 'FAILED' AND NOT unconfirmed"
    )
    withdrawn = up.one("SELECT count(*) FROM withdrawal")
    banks.expect(0 < withdrawn == certain, f"{withdrawn} of {certain} local rollbacks have run")


_LEFT = f"SELECT count(*) FROM shield_outbox WHERE waiting AND last_error LIKE '%{UNKNOWN}%'"

FAULTS = (
    Fault(
        id="F37",
        name="a release next to one that does not know its events",
        run=rolling_deployment,
    ),
)
