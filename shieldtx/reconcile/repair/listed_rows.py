"""The rows that a run has listed, read from its Parquet files in batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.verdicts import Verdict

BATCH_ROWS: Final = 5_000

_READ: Final = (
    "kind",
    "upstream",
    "downstream",
    "consumer_group",
    "event_id",
    "topic",
    "event_type",
    "verdict",
    "upstream_status",
    "downstream_status",
    "upstream_attempts",
    "attempts",
    "published_at",
    "settled_at",
)
RUN_ID: Final = "run_id"
"""The column with the run that has listed a row."""
_TIMES: Final = ("published_at", "settled_at")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRow:
    """One event and group, or one event and topic, with the columns that a repair needs."""

    kind: TxKind
    upstream: str
    downstream: str
    group: str
    event_id: UUID
    topic: str
    event_type: str
    verdict: Verdict
    upstream_status: OutboxStatus | None
    downstream_status: InboxStatus | None
    upstream_attempts: int | None
    attempts: int | None
    """Attempts of the group."""
    published_at: datetime | None
    """The time at which the outbox row was settled, by the upstream's clock."""
    settled_at: datetime | None
    """The time at which the inbox row was settled, by the downstream's clock."""


def listed_rows(
    folder: Path, verdicts: Collection[Verdict], *, run_id: str | None = None
) -> Iterator[ListedRow]:
    """Yield the rows with one of these verdicts, with one batch in memory.

    With a `run_id`, all rows must be of that run. Raises ConfigurationError for rows of another run
    and for unreadable rows: no PyArrow, no such folder, other files.
    """
    _require_pyarrow()
    wanted = {verdict.value for verdict in verdicts}
    for file in _files(folder):
        try:
            for values in _values(file, run_id):
                if values["verdict"] in wanted:
                    yield _row(values)
        except (OSError, ValueError) as error:
            # PyArrow's errors are subclasses of these.
            raise ConfigurationError(f"the rows in {file} cannot be read: {error}") from error


def _files(folder: Path) -> list[Path]:
    try:
        # `rglob` skips a folder that this account may not read, as if it were empty.
        next(folder.iterdir(), None)
        return sorted(folder.rglob("*.parquet"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(
            f"{folder} is not there: repair where the run left its rows, or give the folder of a "
            "copy with --folder"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"the rows in {folder} cannot be read: {error}") from error


def _values(file: Path, run_id: str | None) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file in batches; a scan of the whole folder would read ahead."""
    parquet = import_module("pyarrow.parquet").ParquetFile(file)
    columns = _READ if run_id is None else (*_READ, RUN_ID)
    with parquet:
        missing = set(columns).difference(parquet.schema_arrow.names)
        if missing:
            raise ConfigurationError(
                f"the rows in {file} have no {', '.join(sorted(missing))}: another version of "
                "shieldtx wrote them; reconcile once more"
            )
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=list(columns)):
            if run_id is not None:
                _check_run(file, run_id, batch.column(RUN_ID).unique().to_pylist())
            yield from _in_microseconds(batch).to_pylist()


def _check_run(file: Path, run_id: str, found: Collection[str]) -> None:
    others = ", ".join(sorted(str(other) for other in found if other != run_id))
    if others:
        raise ConfigurationError(
            f"the rows in {file} are those of run {others}, not of {run_id}: another run has "
            "written to this folder; reconcile once more into a folder of its own (--out)"
        )


def _in_microseconds(batch: Any) -> Any:
    """Convert times of any unit and zone into microseconds since 1970."""
    pyarrow = import_module("pyarrow")
    for name in _TIMES:
        times = batch.column(name)
        if pyarrow.types.is_timestamp(times.type):
            in_utc = times.cast(pyarrow.timestamp("us", tz="UTC"), safe=False)
            position = batch.schema.get_field_index(name)
            batch = batch.set_column(position, name, in_utc.cast(pyarrow.int64()))
    return batch


def _row(values: Mapping[str, Any]) -> ListedRow:
    upstream_status, downstream_status = values["upstream_status"], values["downstream_status"]
    return ListedRow(
        kind=TxKind(values["kind"]),
        upstream=values["upstream"],
        downstream=values["downstream"],
        group=values["consumer_group"],
        event_id=UUID(values["event_id"]),
        topic=values["topic"],
        event_type=values["event_type"],
        verdict=Verdict[values["verdict"]],
        upstream_status=OutboxStatus(upstream_status) if upstream_status else None,
        downstream_status=InboxStatus(downstream_status) if downstream_status else None,
        upstream_attempts=values["upstream_attempts"],
        attempts=values["attempts"],
        published_at=_utc(values["published_at"]),
        settled_at=_utc(values["settled_at"]),
    )


def _utc(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


def _require_pyarrow() -> None:
    """Raise ConfigurationError if PyArrow is missing, which only repairs need."""
    if find_spec("pyarrow") is None:
        raise ConfigurationError(
            "the rows of a run are Parquet files, and PyArrow, which reads them, is not installed: "
            "pip install 'shieldtx[spark]'"
        )
