"""The environment of the peers and of the plots: packages that shieldtx itself does not need."""

from __future__ import annotations

import shutil
import subprocess
import venv
from pathlib import Path
from typing import Final

from benchmarks.data.events import NOTE
from benchmarks.harness.child_process import BUILD, ROOT
from benchmarks.harness.samples import BenchmarkFailed

LOCK: Final = ROOT / "benchmarks" / "requirements.txt"
_FOLDER: Final = BUILD / "bench-venv"
_READY: Final = _FOLDER / ".ready"
"""Contains the digest of the lock from which the environment was made."""

_LINE: Final = """
FROM (SELECT 'key-' || i % {keys} AS key,
             '{{"n":' || i / {keys} + 1 || ',"key":"key-' || i % {keys} || '","note":"{note}"}}'
                 AS payload
      FROM generate_series(0, {events} - 1) AS i)
"""
TXOUTBOX_FILL: Final = (
    "INSERT INTO outbox (topic, key, payload) SELECT '{topic}', key, convert_to(payload, 'UTF8')"
    + _LINE
)
FASTSTREAM_FILL: Final = (
    "INSERT INTO outbox (queue, payload, headers) SELECT 'bench', convert_to(payload, 'UTF8'), "
    "jsonb_build_object('content-type', 'application/json', 'correlation_id', "
    "gen_random_uuid()::text)" + _LINE
)


def fill_of(statement: str, *, topic: str, events: int, keys: int) -> str:
    """Return the statement that fills a peer's own table with the sequence of events."""
    return statement.format(topic=topic, events=events, keys=keys, note=NOTE)


def python() -> Path:
    """Return the Python of the environment, which is created the first time."""
    interpreter = _FOLDER / "bin" / "python"
    lock = LOCK.read_text()
    if _READY.exists() and _READY.read_text() == lock:
        return interpreter
    shutil.rmtree(_FOLDER, ignore_errors=True)
    venv.create(_FOLDER, with_pip=True)
    pip = [str(interpreter), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(  # noqa: S603  the environment of this package
        [*pip, "--quiet", "--require-hashes", "-r", str(LOCK)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise BenchmarkFailed(f"pip could not install the peers:\n{done.stdout}")
    _READY.write_text(lock)
    return interpreter
