"""The rows that a run has listed are read from its files unchanged, a few at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.repair import listed_rows as rows_module
from shieldtx.reconcile.repair.listed_rows import ListedRow, listed_rows
from shieldtx.reconcile.verdicts import Verdict

NOW = datetime(2026, 3, 1, 2, 0, 0, 123_456, tzinfo=UTC)
MICROS = pa.timestamp("us", tz="UTC")


def values(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "COMMIT",
        "upstream": "orders",
        "downstream": "stock",
        "consumer_group": "stock",
        "event_id": str(new_event_id()),
        "topic": "orders.placed",
        "event_type": "orders.placed",
        "verdict": "MISSING_DOWNSTREAM",
        "upstream_status": "PROCESSED",
        "downstream_status": None,
        "upstream_attempts": 1,
        "attempts": None,
        "published_at": NOW,
        "settled_at": None,
        "run_id": "r1",
    } | changes


def write(file: Path, *listed: dict[str, Any], times: pa.DataType = MICROS) -> None:
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("kind", "upstream", "downstream")),
            *((name, pa.string()) for name in ("consumer_group", "event_id", "topic")),
            *((name, pa.string()) for name in ("event_type", "verdict", "run_id")),
            *((name, pa.string()) for name in ("upstream_status", "downstream_status")),
            *((name, pa.int32()) for name in ("upstream_attempts", "attempts")),
            *((name, times) for name in ("published_at", "settled_at")),
        ]
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(listed), schema=schema), file)


def test_row_is_read_as_it_was_listed(tmp_path: Path):
    given = values()
    write(tmp_path / "part-0.parquet", given)
    (tmp_path / "_SUCCESS").touch()

    (row,) = listed_rows(tmp_path, [Verdict.MISSING_DOWNSTREAM])

    assert row == ListedRow(
        kind=TxKind.COMMIT,
        upstream="orders",
        downstream="stock",
        group="stock",
        event_id=UUID(given["event_id"]),
        topic="orders.placed",
        event_type="orders.placed",
        verdict=Verdict.MISSING_DOWNSTREAM,
        upstream_status=OutboxStatus.PROCESSED,
        downstream_status=None,
        upstream_attempts=1,
        attempts=None,
        published_at=NOW,
        settled_at=None,
    )


def test_only_rows_of_the_requested_verdicts_are_read(tmp_path: Path):
    parked = values(verdict="PARKED", downstream_status="DEAD", attempts=3, settled_at=NOW)
    write(tmp_path / "part-0.parquet", values(), values(verdict="IN_FLIGHT"))
    write(tmp_path / "part-1.parquet", parked, values())

    found = list(listed_rows(tmp_path, [Verdict.PARKED, Verdict.MISSING_DOWNSTREAM]))

    assert sorted(row.verdict for row in found) == [
        "MISSING_DOWNSTREAM",
        "MISSING_DOWNSTREAM",
        "PARKED",
    ]
    (dead,) = [row for row in found if row.verdict is Verdict.PARKED]
    assert (dead.downstream_status, dead.attempts) == (InboxStatus.DEAD, 3)


@pytest.mark.parametrize(
    "times",
    [pa.timestamp("ns"), pa.timestamp("us"), pa.timestamp("us", tz="Europe/Berlin")],
    ids=str,
)
def test_times_are_utc_to_the_microsecond_in_any_storage_form(tmp_path: Path, times: Any):
    given = NOW if times.tz else NOW.replace(tzinfo=None)
    write(tmp_path / "part-0.parquet", values(published_at=given), times=times)

    (row,) = listed_rows(tmp_path, [Verdict.MISSING_DOWNSTREAM])

    assert row.published_at == NOW
    assert row.published_at.utcoffset() == timedelta(0)


def test_run_that_listed_nothing_has_no_rows(tmp_path: Path):
    (tmp_path / "_SUCCESS").touch()

    assert list(listed_rows(tmp_path, list(Verdict))) == []


def test_missing_folder_is_refused_with_a_remedy(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="--folder"):
        list(listed_rows(tmp_path / "gone", list(Verdict)))


def test_foreign_files_are_refused_by_their_missing_columns(tmp_path: Path):
    pq.write_table(pa.table({"verdict": ["PARKED"]}), tmp_path / "part-0.parquet")

    with pytest.raises(ConfigurationError, match=r"have no attempts, .*reconcile once more"):
        list(listed_rows(tmp_path, list(Verdict)))


def test_rows_of_another_run_are_refused_when_reached(tmp_path: Path):
    write(tmp_path / "part-0.parquet", values())
    write(tmp_path / "part-1.parquet", values(run_id="r2"), values())
    rows = listed_rows(tmp_path, list(Verdict), run_id="r1")

    assert next(rows).group == "stock"
    with pytest.raises(ConfigurationError, match=r"of run r2, not of r1: .*reconcile once more"):
        next(rows)


def test_rows_without_a_run_id_are_refused(tmp_path: Path):
    write(tmp_path / "part-0.parquet", values())
    file = tmp_path / "part-0.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["run_id"]), file)

    assert len(list(listed_rows(tmp_path, list(Verdict)))) == 1
    with pytest.raises(ConfigurationError, match=r"have no run_id: another version of shieldtx"):
        list(listed_rows(tmp_path, list(Verdict), run_id="r1"))


def test_broken_file_is_refused(tmp_path: Path):
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1 not really PAR1")

    with pytest.raises(ConfigurationError, match="cannot be read"):
        list(listed_rows(tmp_path, list(Verdict)))


def test_missing_pyarrow_is_reported_with_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rows_module, "find_spec", lambda name: None)

    with pytest.raises(ConfigurationError, match=r"pip install 'shieldtx\[spark\]'"):
        list(listed_rows(tmp_path, list(Verdict)))


def test_many_rows_are_never_in_memory_together(tmp_path: Path):
    listed = [values() for _ in range(20_000)]
    for part in range(10):
        write(tmp_path / f"part-{part}.parquet", *listed)
    before, most, count = pa.total_allocated_bytes(), 0, 0

    for _ in listed_rows(tmp_path, [Verdict.MISSING_DOWNSTREAM]):
        count += 1
        if count % 5_000 == 0:
            most = max(most, pa.total_allocated_bytes() - before)

    assert count == 200_000
    assert most < 10_000_000, "one file's rows, not those of all"
