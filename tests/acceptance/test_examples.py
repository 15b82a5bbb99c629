"""The small examples as a new user runs them: as programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from examples.retail.stage import PROJECT


def test_smallest_example_reserves_stock_and_cancels_the_rest() -> None:
    example = PROJECT / "examples" / "smallest.py"

    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.splitlines() == [
        "shop:      Ada orders a lamp (order 1)",
        "shop:      Bo orders a lamp (order 2)",
        "shop:      Cleo orders a lamp (order 3)",
        "warehouse: order 1 is reserved",
        "warehouse: order 2 is reserved",
        "shop:      order 3 came back and is cancelled",
    ]
    assert done.stderr == "", "a refusal is no warning"
    assert len(example.read_text().splitlines()) < 85


def test_smallest_example_delivers_twice_in_one_process() -> None:
    again = """
import runpy
smallest = runpy.run_path("examples/smallest.py", run_name="__main__")
with smallest["Session"](smallest["shop"].engine) as session, session.begin():
    smallest["place"](session, smallest["Order"](4, "Dora", "lamp"))
smallest["deliver"]()
"""

    done = subprocess.run(
        [sys.executable, "-c", again],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout.splitlines()[-2:] == [
        "shop:      Dora orders a lamp (order 4)",
        "shop:      order 4 came back and is cancelled",
    ]


def test_demo_without_java_names_the_package_to_install(tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": "", "PATH": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "examples.retail", "--folder", tmp_path],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert re.fullmatch(r"the demo broke off: Java is not installed: install .*\n", done.stdout)
    assert done.stderr == ""
