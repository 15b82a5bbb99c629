"""Writes the result files of a run, so that each is complete or absent."""

from __future__ import annotations

from pathlib import Path

from shieldtx.reconcile.findings import Findings, OutputFolder, to_json
from shieldtx.reconcile.report import html


def write(findings: Findings, folder: OutputFolder) -> None:
    """Write the page, and then the findings: the file of the findings marks a complete run."""
    _write(folder.page, html.page(findings).encode("utf-8"))
    _write(folder.findings, to_json(findings))


def _write(file: Path, content: bytes) -> None:
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.write_bytes(content)
    unfinished.replace(file)
