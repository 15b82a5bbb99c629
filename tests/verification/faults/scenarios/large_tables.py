"""F45: the schema of large tables is upgraded during writes and a long read."""

from __future__ import annotations

import time
from contextlib import ExitStack

from sqlalchemy import Connection, make_url

from shieldtx.store.schema import Schema
from tests.verification.faults import bulk
from tests.verification.faults.banks import Banks
from tests.verification.faults.matrix import Fault
from tests.verification.faults.side import Side
from tests.verification.faults.survivors import PATIENCE_S, expect_all_to_end_in_order

ROWS = 200_000
OLD = "0007"
"""The first revision that this release's writers support."""
WAITS_AT_MOST_MS = 1000
"""Lock timeout of a writer, after which its transaction fails."""
READS_S = 3.0
LEVELS = ("REPEATABLE READ", "READ COMMITTED")
WAITS = "waits for a lock"


def upgraded_under_load(banks: Banks) -> None:
    """Old tables with many rows are upgraded, while clients write and transactions read.

    The upgrade's index builds wait for an old snapshot, its exclusive locks for an idle reader.
    """
    for side in banks.sides:
        Schema(side.engine).downgrade(OLD)
    bulk.insert(banks, ROWS)
    clients = banks.begin_writing(600, pause=0.2, url=impatient(banks.upstream.url))
    with ExitStack() as idle:
        with ExitStack() as old:
            for side in banks.sides:
                for level, open_ in zip(LEVELS, (old, idle), strict=True):
                    open_.enter_context(_reader(side, level))
            upgrades = [side.launch("db", "upgrade") for side in banks.sides]
            # The length of the transactions is the subject of this fault.
            time.sleep(READS_S)
        for upgrade in upgrades:
            banks.until(
                lambda upgrade=upgrade: WAITS in upgrade.log.read_text(),
                "the reader is in the way of the upgrade",
                PATIENCE_S,
            )
        time.sleep(READS_S)
        banks.expect(all(u.is_running for u in upgrades), "the upgrades wait for the readers")
    for side, upgrade in zip(banks.sides, upgrades, strict=True):
        upgrade.finish(PATIENCE_S)
        side.launch("db", "check").finish(PATIENCE_S)
    banks.expect(clients.is_running, "clients write until all is upgraded")
    clients.finish(PATIENCE_S)
    banks.open()
    banks.write(40)


def impatient(url: str) -> str:
    """Return a database's URL for clients with a short lock timeout."""
    options = {"options": f"-c lock_timeout={WAITS_AT_MOST_MS}"}
    return make_url(url).update_query_dict(options).render_as_string(hide_password=False)


def _reader(side: Side, level: str) -> Connection:
    """Open a transaction that has read the large tables."""
    reader = side.engine.connect().execution_options(isolation_level=level)
    for table in ("shield_outbox", "shield_inbox"):
        reader.exec_driver_sql(f"SELECT count(*) FROM {table}")
    return reader


def _as_usual(banks: Banks) -> None:
    counts = banks.count()
    refused = counts.fail + counts.info
    banks.expect(refused == 0, f"no writer waits for more than {WAITS_AT_MOST_MS} ms: {refused}")
    bulk.delete(banks)
    expect_all_to_end_in_order(banks)


FAULTS = (
    Fault(
        id="F45",
        name="schema upgrade of large tables under load, during a long read",
        run=upgraded_under_load,
        after=_as_usual,
    ),
)
