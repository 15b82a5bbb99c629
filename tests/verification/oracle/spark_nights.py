"""The nights of histories in real databases, by the real reconciliation on Spark.

Before each night the tables are filled as the night finds them, with times counted back from now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pyarrow.parquet as pq
from sqlalchemy import delete, text

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.findings import Findings, OutputFolder
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.database_history import SqlDatabaseHistory
from tests.spark.nights import Nights, mode, set_back
from tests.spark.planting import Service
from tests.verification.oracle.history import History, Pair
from tests.verification.oracle.nights import Said, may_tell, must_tell, request_of, truth_of
from tests.verification.oracle.restores import must_look_at_all, timeline
from tests.verification.oracle.setting import Judged
from tests.verification.oracle.spark_topics import topics_of
from tests.verification.oracle.timeline import Life

_UNKNOWN_DEFAULTS = {"shard": 0, "waiting": False, "holds_key": False, "unconfirmed": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """The results of a run on Spark."""

    said: Said
    """Without the verdicts that are only counted."""
    counts: Counter[tuple[str, ...]]
    """All verdicts by kind, upstream, downstream, group and verdict."""
    findings: Findings


@dataclass(frozen=True, kw_only=True, slots=True)
class SparkNights:
    """The nights of one history."""

    history: History
    services: Mapping[str, Service]
    nights: Nights
    name: str
    """The unique name of the history, under which its runs are stored."""

    def run(self) -> list[Night]:
        """Run all nights, and return the results of each."""
        # Runs of all names record receipts of groups; those of other histories must not count.
        self._forget_all_runs()
        found: list[Night] = []
        began: datetime | None = None
        for night in self.history.setting.nights:
            first = self.services[self.history.setting.services[0]]
            begins = first.now() - timedelta(minutes=night.at)
            if began is not None:
                # Everything in the past moves back by the same time.
                set_back(first, began - begins, with_rows=True)
            fill(self.history, night, self.services, began=begins)
            with topics_of(self.history, night, begins), self._identities(night):
                found.append(self._run(night, len(found)))
            began = begins
        return found

    def _forget_all_runs(self) -> None:
        for service in self.services.values():
            with service.engine.begin() as connection:
                connection.execute(delete(service.tables.reconcile_run))

    @contextmanager
    def _identities(self, night: Judged) -> Iterator[None]:
        """Let the servers report the recoveries to a point in time of the history."""
        now = SqlDatabaseHistory.now
        names = {each.engine.url.database: name for name, each in self.services.items()}

        def said(asked: SqlDatabaseHistory) -> DatabaseHistory:
            service = names[asked._engine.url.database]
            return replace(now(asked), timeline=timeline(self.history, night, service))

        with patch.object(SqlDatabaseHistory, "now", said):
            yield

    def _run(self, night: Judged, number: int) -> Night:
        databases = {name: service.database() for name, service in self.services.items()}
        request = request_of(self.history, night, databases)
        # Both ways lead to the same verdicts.
        push_down = (self.history.random.random() < 0.5) if number else True
        findings = self.nights.run(
            *request.services,
            scope=self.name,
            margin=request.margin,
            broker=request.broker,
            push_down=push_down,
        )
        found = _listed(OutputFolder(path=self.nights.folder))
        is_full = mode(findings) is Mode.FULL
        said = Said(
            night=night,
            found=found,
            truth=truth_of(self.history, night, found, is_full=is_full),
            is_full=is_full,
            tells=any(not self._is_of_a_rename(findings, each) for each in findings.problems),
            must_tell=must_tell(self.history, night),
            may_tell=may_tell(self.history, night),
            is_whole=False,
            because=findings.full_because,
            restored=must_look_at_all(self.history, night),
        )
        return Night(said=said, counts=_counts(findings), findings=findings)

    def _is_of_a_rename(self, findings: Findings, problem: str) -> bool:
        """Return whether a problem is a time in which runs judged a service by another name."""
        is_renamed = any(night.renamed_service for night in self.history.setting.nights)
        return is_renamed and problem in findings.unjudged_spans


def fill(
    history: History, night: Judged, services: Mapping[str, Service], *, began: datetime
) -> None:
    """Fill the tables of all services as this night finds them; times count from `began`."""
    for name in history.setting.services:
        service = services[name]
        prefix = "" if service.schema is None else f"{service.schema}."
        with service.engine.begin() as connection:
            connection.execute(text(f"TRUNCATE {prefix}shield_outbox, {prefix}shield_inbox"))
        outbox: list[dict[str, Any]] = []
        inbox: list[dict[str, Any]] = []
        for seq, life in history.rows(night, name):
            row = {"seq": seq} | _row(life, night, began)
            (outbox if life.group is None else inbox).append(row)
        service.insert(outbox=outbox, inbox=inbox)


def _row(life: Life, night: Judged, began: datetime) -> dict[str, Any]:
    row = life.at(night.at)
    assert row is not None
    if life.group is None:
        row = _UNKNOWN_DEFAULTS | row
    else:
        row = {name: value for name, value in row.items() if name not in _UNKNOWN_DEFAULTS}
        row |= {"consumer_group": life.group}
    leased = row.get("lease_until") is not None
    row |= {
        "event_id": life.event_id,
        "source": life.source,
        "tx_kind": life.kind.value,
        "status": row["status"].value,
        "lease_token": UUID(int=life.event_id.int ^ 1) if leased else None,
    }
    times = [name for name in row if name.endswith(("_at", "_until", "_time"))]
    return row | {
        name: None if row[name] is None else began + timedelta(minutes=row[name]) for name in times
    }


def _listed(folder: OutputFolder) -> dict[Pair, Verdict]:
    rows = pq.read_table(folder.rows).to_pylist()
    found = {
        Pair(
            row["kind"],
            row["upstream"],
            row["downstream"],
            row["consumer_group"],
            UUID(row["event_id"]),
        ): Verdict[row["verdict"]]
        for row in rows
    }
    assert len(found) == len(rows), "a pair has one verdict"
    return found


def _counts(findings: Findings) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for count in findings.counts:
        pair = count.pair
        key = (pair.kind.value, pair.upstream, pair.downstream, pair.group, count.verdict.value)
        counts[key] += count.rows
    return counts


def counted(found: Mapping[Pair, Verdict]) -> Counter[tuple[str, ...]]:
    """Count verdicts as a run does."""
    return Counter((*pair[:4], verdict.value) for pair, verdict in found.items())
