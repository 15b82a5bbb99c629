"""The job that the reconciliation starts, in any installation of shieldtx."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shieldtx._resources import PACKAGE

SHOW = "from shieldtx.reconcile.spark_launcher import command; print(*command()[0])"


@pytest.mark.parametrize(
    ("home", "job", "module"),
    [
        ("a checkout", "spark", "spark"),
        # The folder name of a clone of the repository by default.
        ("shieldtx", "spark", "spark"),
        ("site-packages", "shieldtx/spark", "shieldtx.spark"),
    ],
)
def test_job_is_found_next_to_the_package_or_in_it(
    tmp_path: Path, home: str, job: str, module: str
) -> None:
    place = tmp_path / home
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, place / "shieldtx", ignore=ignore)
    shutil.copytree(PACKAGE.parent / "spark", place / job, ignore=ignore)
    shown = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=tmp_path,
        env={"PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"-m {module} " in shown.stdout
