"""Mutants of the nightly reconciliation: of Spark's job, and of the repair.

Their commands do not build the banks' application, which applies the other mutants. Instead
`run_mutated` runs a command with a mutant, and starts `tests.verification.faults.mutants.job` in
place of Spark's job.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, insert, select

from shieldtx.cli import main
from shieldtx.domain.events import new_event_id
from shieldtx.reconcile import spark_launcher, window
from shieldtx.reconcile.repair.replays import Replays
from shieldtx.store import repair_batch
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.row_repair import RowRepair
from shieldtx.store.statements import repair as sql
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import Mutant, named

VARIABLE: Final = "BANK_RECONCILIATION_MUTANT"
_JOB: Final = "tests.verification.faults.mutants.job"
_LATER: Final = timedelta(days=1)
_HASH: Final = re.compile(r"hashtextextended\(\w+\.payload, 0\)")


def run_mutated(words: Sequence[str]) -> None:
    """Run `shieldtx` with these arguments and with the mutant of the environment."""
    mutant = named_by_environment()
    if mutant.id in _OF_THE_JOB:
        _start_another_job()
    else:
        mutant.apply(Breaker())
    sys.argv = ["shieldtx", *words]
    main()


def named_by_environment() -> Mutant:
    """Return the mutant that the environment of this process names."""
    return IN_RECONCILIATION[os.environ[VARIABLE]]


def _start_another_job() -> None:
    command = spark_launcher.command

    def other(*given: Any) -> tuple[list[str], dict[str, str]]:
        words, environment = command(*given)
        words[words.index("-m") + 1] = _JOB
        return words, environment

    spark_launcher.command = other


def _the_watermark_lies_ahead(breaker: Breaker) -> None:
    window_of = window.window_of

    def mutant(*given: Any, **named: Any) -> window.Window:
        found = window_of(*given, **named)
        return replace(found, watermark=found.watermark and found.watermark + _LATER)

    window.window_of = mutant


def _digests_without_payloads(breaker: Breaker) -> None:
    from spark.sources.jdbc import Databases

    def blind(read: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(self: Databases, service: Any, query: str, **named: Any) -> Any:
            blinded = {
                name: _HASH.sub("0", value) if isinstance(value, str) else value
                for name, value in named.items()
            }
            return read(self, service, query, **blinded)

        return mutant

    Databases.frame, Databases.rows = blind(Databases.frame), blind(Databases.rows)


def _repaired_however_it_stands_now(breaker: Breaker) -> None:
    repair_batch._is_as_seen = lambda seen, now: True


def _published_again_under_a_new_id(breaker: Breaker) -> None:
    def mutant(self: RowRepair, connection: Connection, batch: Any) -> None:
        o = self._tables.outbox
        found = connection.execute(select(o).where(o.c.event_id.in_(batch.ids))).mappings().all()
        copies = [{**row, "event_id": new_event_id()} for row in found]
        for copy in copies:
            del copy["seq"]
        connection.execute(insert(o), copies)
        ids = [copy["event_id"] for copy in copies]
        connection.execute(sql.publish_again(self._tables, self._dialect, ids))

    RowRepair._publish_again = mutant


def _delivered_although_taken_back(breaker: Breaker) -> None:
    SqlRepairStore.taken_back = lambda self, events: set()


def _replayed_although_undone(breaker: Breaker) -> None:
    Replays._why_not = lambda self, line, *, is_late: None


IN_RECONCILIATION = named(
    VARIABLE,
    ("M19", "reconciled without regard to the watermark", _the_watermark_lies_ahead),
    ("M20", "reconciled by digests without payloads", _digests_without_payloads),
    ("M21", "repaired although the row has moved since the run", _repaired_however_it_stands_now),
    ("M22", "published again by a repair under a new id", _published_again_under_a_new_id),
    ("M62", "handed over by a repair although taken back", _delivered_although_taken_back),
    ("M63", "replayed by a repair although undone locally", _replayed_although_undone),
)
_OF_THE_JOB = {"M19", "M20"}
