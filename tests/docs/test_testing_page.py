"""The test suite of docs/how-to/test-your-service.md, saved and run as the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS

PAGE = (DOCS / "how-to" / "test-your-service.md").read_text()
_FILE = re.compile(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STRICT = ("-W", "error")
"""A warning in the run of a user is an error."""
PASSED = {"tests/unit": 14, "tests/postgres": 1, "tests/servers": 1}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("folder", PASSED)
def test_suite_of_the_page_passes(folder: str, tmp_path: Path) -> None:
    for name, text in _FILE.findall(PAGE):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    kept = ("SHIELDTX_CACHE", "SHIELDTX_IVY_SETTINGS")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(("SHIELDTX_", "PYTEST_"))
    }
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *STRICT, folder],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PASSED[folder]} passed" in done.stdout
