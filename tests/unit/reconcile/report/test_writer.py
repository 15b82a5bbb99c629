"""The files of a run: complete, and the findings last."""

from __future__ import annotations

from pathlib import Path

import pytest

from shieldtx.reconcile.findings import OutputFolder, from_json
from shieldtx.reconcile.report import writer
from tests.support.sample_findings import few_findings, findings


def test_run_writes_its_page_and_its_findings(tmp_path):
    folder = OutputFolder(path=tmp_path)
    writer.write(few_findings(), folder)
    assert from_json(folder.findings.read_bytes()) == few_findings()
    assert folder.page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "summary.json"]


def test_findings_are_written_after_the_page(tmp_path, monkeypatch):
    finished, replace = [], Path.replace

    def noting(self, target):
        finished.append(Path(target).name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noting)
    writer.write(findings(), OutputFolder(path=tmp_path))
    assert finished == ["report.html", "summary.json"]


def test_page_that_cannot_be_written_leaves_no_findings(tmp_path):
    folder = OutputFolder(path=tmp_path)
    folder.page.mkdir()
    with pytest.raises(OSError, match=folder.page.name):
        writer.write(findings(), folder)
    assert not folder.findings.exists()


def test_earlier_report_is_replaced_as_a_whole(tmp_path):
    folder = OutputFolder(path=tmp_path)
    writer.write(few_findings(), folder)
    writer.write(findings(), folder)
    assert from_json(folder.findings.read_bytes()) == findings()
    assert "0199" not in folder.page.read_text(encoding="utf-8")
