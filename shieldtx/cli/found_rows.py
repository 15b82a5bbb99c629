"""The folder of a run that is to be repaired, and the rows that the run wrote into it."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.findings import Findings, OutputFolder, from_json
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.reconciliation_runs import StoredRun


def rows_of(ended: StoredRun, copy: Path | None) -> Path:
    """Return the folder with the rows of a run, in the run's folder or in a copy of it.

    Raises ConfigurationError where the folder is incomplete, has no findings or those of another
    run, or where this account may not read it.
    """
    folder = OutputFolder(path=copy or Path(ended.folder))
    findings = _read(folder, ended)
    if findings.run_id != ended.run_id:
        raise ConfigurationError(
            f"{folder.path} holds the findings of run {findings.run_id or 'that was not stored'} "
            f"by now, not those of {ended.run_id}: give a copy of its folder with --folder, or "
            "repair the later run"
        )
    mismatches = sum(
        ended.totals.get(verdict.value, 0) for verdict in Verdict if verdict.is_mismatch
    )
    if mismatches and _is_empty(folder.rows):
        raise ConfigurationError(
            f"{folder.rows} holds no Parquet file, but run {ended.run_id} counted {mismatches} "
            "mismatches: the rows are missing. Copy the whole folder of the run and give it with "
            "--folder"
        )
    return folder.rows


def _is_empty(rows: Path) -> bool:
    """Whether the folder of rows exists and is empty; its reader reports why it cannot be read."""
    try:
        return rows.is_dir() and not any(rows.rglob("*.parquet"))
    except OSError:
        return False


def _read(folder: OutputFolder, ended: StoredRun) -> Findings:
    try:
        return from_json(folder.findings.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ConfigurationError(
            f"{folder.path} holds no findings: repair on the machine of {ended.who}, or give a "
            "copy of the run's folder with --folder"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{folder.findings} cannot be read: {error}; repair as an account that may read the "
            "folder, or give a copy of it with --folder"
        ) from error
    except ValidationError as error:
        raise ConfigurationError(
            f"{folder.findings} does not hold the findings of a run, or only a part of them: give "
            "a whole copy of the run's folder with --folder, or reconcile once more"
        ) from error
