"""F42: a switch-over to another server, which does not carry the sequences."""

from __future__ import annotations

import re

from shieldtx.cli.errors import MISCONFIGURED
from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.side import Side
from tests.verification.faults.survivors import PATIENCE_S, expect_all_to_end_in_order
from tests.verification.faults.workers import Worker

TABLES = ("shield_outbox", "shield_inbox")
SAID = "the sequence of {table}.seq goes on at 1, but there are rows up to"


def sequences_start_again(banks: Banks) -> None:
    """All stop, the sequences restart, and are repaired as the refused workers advise."""
    carried_over(banks)
    for side in banks.sides:
        checked = side.launch("db", "check")
        for worker in (checked, side.launch("relay"), side.launch("consume", side.group)):
            _expect_refused(banks, side, worker)
        for remedy in re.findall(r"(SELECT setval\(.+?\))(?=[;`])", checked.tail(1)):
            side.execute(remedy)
        again = side.launch("db", "check")
        banks.expect(again.join(PATIENCE_S) and again.exit_status == 0, f"{side.name} is repaired")
    banks.write(40, accounts=banks.accounts[:2])
    banks.open()
    banks.write(60)


def carried_over(banks: Banks) -> None:
    """Rows of all tables are copied, some of them open; the sequences are not."""
    banks.open()
    banks.write(60, refused=0.3)
    banks.drain()
    for side in banks.sides:
        side.stop_all()
    banks.write(40, accounts=banks.accounts[:2])
    for side in banks.sides:
        for table in TABLES:
            side.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'seq'), 1, false)")


def _expect_refused(banks: Banks, side: Side, worker: Worker) -> None:
    banks.until(
        lambda: not worker.is_running or worker.is_ready(),
        f"{worker.name} of {side.name} starts, or ends",
        PATIENCE_S,
    )
    banks.expect(
        worker.exit_status == MISCONFIGURED,
        f"{worker.name} of {side.name} is refused: exit status {worker.exit_status}",
    )
    worker.kill()
    for table in TABLES:
        said = SAID.format(table=table)
        banks.expect(said in worker.log.read_text(), f"{worker.name} of {side.name} says: {said}")


def _in_order(banks: Banks) -> None:
    """Expect that only the workers that the sequences stopped have ended by themselves."""
    for side in banks.sides:
        side.workers[:] = [w for w in side.workers if w.exit_status != MISCONFIGURED]
    expect_all_to_end_in_order(banks)


FAULTS = (
    Fault(
        id="F42",
        name="switch-over with sequences that start again",
        run=sequences_start_again,
        after=_in_order,
    ),
)
