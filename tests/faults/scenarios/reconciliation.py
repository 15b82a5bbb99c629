"""F34 and F35, in their first form: what the nightly comparison of both banks finds."""

from __future__ import annotations

import json
from typing import Any

from shieldtx.embedded.jars import fetch_jdbc_driver
from tests.faults.banks import Banks
from tests.faults.matrix import Fault
from tests.faults.workers import Worker

PLANTED = 3
IN_FLIGHT = 8
WITHIN_S = 120.0


def discrepancies_found(banks: Banks) -> None:
    """Inbox rows vanish, an outbox row vanishes, others are in flight: all told apart."""
    banks.open()
    banks.write(60, refused=0.1)
    banks.drain()
    for side in banks.sides:
        side.stop_all()
    banks.write(IN_FLIGHT)
    _keep(banks)
    expected = _found(banks)["totals"]
    banks.downstream.tamper(
        "DELETE FROM shield_inbox WHERE event_id IN (SELECT event_id FROM shield_inbox "
        "WHERE status = 'PROCESSED' ORDER BY seq LIMIT :planted)",
        planted=PLANTED,
    )
    banks.upstream.tamper(
        "DELETE FROM shield_outbox WHERE event_id = (SELECT event_id FROM shield_outbox "
        "WHERE status = 'PROCESSED' ORDER BY seq DESC LIMIT 1)"
    )
    found = _found(banks)["totals"]
    banks.expect(found.get("MISSING_DOWNSTREAM") == PLANTED, f"all that was planted: {found}")
    banks.expect(found.get("UNKNOWN_UPSTREAM") == 1, f"and the unknown one: {found}")
    banks.expect("MISSING_DOWNSTREAM" not in expected, f"nothing before: {expected}")
    again = _found(banks)["totals"]
    banks.expect(again == found, f"a second run finds the same: {again}, {found}")
    _put_back(banks)
    banks.open()


def killed_and_twice_at_once(banks: Banks) -> None:
    """A run is killed in the middle, two run at once: each later one finds what is there."""
    banks.open()
    banks.write(60, refused=0.1)
    banks.drain()
    first = _start(banks, "killed")
    banks.until((banks.folder / "killed").exists, "the run has begun", WITHIN_S)
    first.kill()
    together = [_start(banks, name) for name in ("one", "other")]
    for run in together:
        run.finish(WITHIN_S)
    totals = [_read(run)["totals"] for run in together]
    banks.expect(totals[0] == totals[1], f"both find the same: {totals}")
    matched = totals[0].get("MATCHED", 0) + totals[0].get("REFUSED", 0)
    banks.expect(matched >= 60, f"everything is in order: {totals[0]}")


def _start(banks: Banks, name: str) -> Worker:
    return banks.upstream.launch(
        "reconcile",
        *("--upstream", "upstream=UPSTREAM_URL", "--downstream", "downstream=DOWNSTREAM_URL"),
        *("--margin", "0", "--out", str(banks.folder / name), "--json"),
        UPSTREAM_URL=banks.upstream.url,
        DOWNSTREAM_URL=banks.downstream.url,
        SHIELDTX_JDBC_JAR=str(fetch_jdbc_driver()),
    )


def _found(banks: Banks) -> dict[str, Any]:
    run = _start(banks, f"reconciliation-{len(banks.upstream.workers)}")
    if not run.join(WITHIN_S):
        raise AssertionError(f"the reconciliation takes longer than {WITHIN_S} s\n{run.tail()}")
    return _read(run)


def _read(run: Worker) -> dict[str, Any]:
    printed = run.log.read_text()
    found: dict[str, Any] = json.loads(printed[printed.index("{") :])
    return found


def _keep(banks: Banks) -> None:
    """Copy all rows, also those that are about to vanish."""
    banks.downstream.execute("CREATE TABLE kept AS SELECT * FROM shield_inbox")
    banks.upstream.execute("CREATE TABLE kept AS SELECT * FROM shield_outbox")


def _put_back(banks: Banks) -> None:
    """Undo what was planted, so that the banks can be counted."""
    for side, table in ((banks.downstream, "shield_inbox"), (banks.upstream, "shield_outbox")):
        side.tamper(
            f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM kept k "
            f"WHERE NOT EXISTS (SELECT FROM {table} t WHERE t.event_id = k.event_id)"
        )


FAULTS = (
    Fault(id="F34", name="planted discrepancies, rows in flight", run=discrepancies_found),
    Fault(id="F35", name="reconciliation killed, and twice at once", run=killed_and_twice_at_once),
)
