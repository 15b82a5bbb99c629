"""F39: transactions of other producers on the banks' topics."""

from __future__ import annotations

from itertools import cycle

from shieldtx.domain.events import new_event_id
from tests.verification.faults.banks import Banks
from tests.verification.faults.foreign_client import ForeignClient, RawRecord
from tests.verification.faults.matrix import Fault

ROUNDS = 3


def aborted_among_good_ones(banks: Banks) -> None:
    """Transfers and rollbacks of an aborted transaction lie among valid ones."""
    banks.open()
    banks.write(30, refused=0.3)
    banks.drain()
    foreign_client = ForeignClient(banks.kafka.bootstrap)
    for number in range(ROUNDS):
        withdrawn = [*_transfers(banks, foreign_client), *_rollbacks(banks, foreign_client)]
        with foreign_client.aborted(*withdrawn) as put:
            banks.planted |= {record.place for record in put}
            # Records after an open transaction wait until it ends.
            banks.write(30, refused=0.3)
            banks.until(lambda: set(banks.upstream.outbox()) == {"PROCESSED"}, "all are sent")
            if number:
                banks.upstream.consume()
                banks.downstream.consume()
        banks.drain()
    banks.expect(len(banks.planted) > ROUNDS, "nothing was withdrawn")
    # After the last transaction too.
    banks.write(30, refused=0.3)


def _transfers(banks: Banks, foreign_client: ForeignClient) -> list[RawRecord]:
    """Make transfers of existing accounts, under new ids."""
    partitions = cycle(range(foreign_client.partitions(banks.topics[0])))
    return [
        record.headed(ce_id=str(new_event_id()).encode()).evolve(partition=next(partitions))
        for record in foreign_client.read(banks.topics[0])[:9]
    ]


def _rollbacks(banks: Banks, foreign_client: ForeignClient) -> list[RawRecord]:
    """Make rollbacks of transfers that were credited."""
    credited = [row.id for row in banks.downstream.rows("SELECT id FROM credit ORDER BY n")]
    genuine = foreign_client.read(banks.topics[1])
    banks.expect(genuine, "no transfer was refused")
    return [
        rollback.headed(ce_id=str(new_event_id()).encode(), ce_causationid=str(transfer).encode())
        for rollback, transfer in zip(genuine[:5], credited, strict=False)
    ]


FAULTS = (
    Fault(
        id="F39",
        name="aborted transactions of other producers",
        run=aborted_among_good_ones,
    ),
)
