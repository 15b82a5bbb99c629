"""What a run leaves for people and for programs, written so that it is whole or not there."""

from __future__ import annotations

from pathlib import Path

from shieldtx.reconcile.findings import Findings, OutputFolder, to_json
from shieldtx.reconcile.report import html


def write(findings: Findings, folder: OutputFolder) -> None:
    """Write the page, and then the findings themselves: their file says that the run ended well."""
    _write(folder.page, html.page(findings).encode("utf-8"))
    _write(folder.findings, to_json(findings))


def _write(file: Path, content: bytes) -> None:
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.write_bytes(content)
    unfinished.replace(file)
