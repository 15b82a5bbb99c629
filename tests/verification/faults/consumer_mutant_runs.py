"""Mutant runs of consumers."""

from __future__ import annotations

from tests.verification.faults.bank import MARKER
from tests.verification.faults.banks import PRIVATE, Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.scenarios.members import await_rollbacks
from tests.verification.faults.topics import messages

DRAIN_WITHIN_S = 12.0
REFUNDED = "all is refunded"
MORE_THAN_A_BATCH = 120
RETIRED = "bank.retired"
_UNHANDLED = f"""
    INSERT INTO shield_inbox (event_id, consumer_group, source, topic, event_type, tx_kind,
        operation, payload, event_time, status, attempts, due_at, received_at)
    SELECT gen_random_uuid(), :group, 'upstream', '{RETIRED}', '{RETIRED}', 'COMMIT', 'INSERT',
        'null', now(), 'INIT', 0, now(), now()
    FROM generate_series(1, :rows)"""


def failing_to_decode(banks: Banks) -> None:
    """Decoding the first record fails once, for a reason outside the record."""
    side, account = banks.downstream, banks.accounts[:1]
    banks.open(but="downstream consume")
    point = Failpoint(step="decode", when="before", action="raise")
    side.launch("consume", side.group, **side.broken_at(point)).await_ready()
    banks.write(5, accounts=account, refused=0.0)
    banks.struck(side)
    banks.write(5, accounts=account, refused=0.0)


def beside_unhandled_rows(banks: Banks) -> None:
    """A former release left rows of a type that this one does not handle; others are retried."""
    down = banks.downstream
    down.tamper(_UNHANDLED, group=down.group, rows=MORE_THAN_A_BATCH)
    banks.open()
    banks.write(10, refused=1.0, ways=("slowly",))
    _await_refunds(banks, "the backlog empties")
    down.tamper("DELETE FROM shield_inbox WHERE event_type = :type", type=RETIRED)


def renamed(banks: Banks) -> None:
    """The service is renamed while rollbacks of its events are in transit."""
    banks.open(but="upstream consume")
    banks.write(10, refused=1.0)
    await_rollbacks(banks)
    banks.upstream.consume(SHIELDTX_SOURCE="renamed")
    _await_refunds(banks, REFUNDED)


def _await_refunds(banks: Banks, description: str) -> None:
    """Wait until every transfer is refunded."""
    up, refunds = banks.upstream, "SELECT count(*) FROM refund"
    transfers = "SELECT count(*) FROM transfer"
    banks.until(lambda: up.one(refunds) == up.one(transfers), description, DRAIN_WITHIN_S)


def committing_halfway(banks: Banks) -> None:
    """A handler commits after half of its writes, and fails."""
    banks.open()
    banks.write(10, refused=0.5, ways=("halfway",))


def quoted_by_errors(banks: Banks) -> None:
    """A table or a model refuses the note of a transfer, and its error shows the note."""
    banks.open()
    banks.write(10, refused=1.0, ways=("by constraint", "by model"))
    await_rollbacks(banks)
    on_wire = [
        value
        for message in messages(banks.kafka.bootstrap, banks.topics[1:])
        for value in (message.value(), *dict(message.headers() or ()).values())
    ]
    leaked = any(MARKER.encode() in (value or b"") for value in on_wire)
    banks.expect(not leaked, f"{PRIVATE} of rollbacks on the topic")
