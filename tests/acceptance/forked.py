"""Commands in separate processes, forked from one that has imported everything.

Importing takes most of a second, and the tests run hundreds of commands.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from shieldtx.cli import main

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [__name__, "kafka", "shieldtx.brokers.kafka.broker", "shieldtx.cli.program"]
)

TIMEOUT_S = 400
"""For a command that starts Spark on a busy machine."""


def run(
    words: Sequence[str], *, environment: Mapping[str, str], folder: Path, files: Sequence[Path]
) -> int:
    """Run `shieldtx` with these arguments; `files` are its standard input, output and error."""
    process = _FORKS.Process(target=_become, args=(words, environment, folder, files))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"shieldtx {' '.join(words)} ran for {TIMEOUT_S} s")
    return process.exitcode


def _become(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, files: Sequence[Path]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDONLY if number == 0 else os.O_WRONLY), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  a descriptor
    sys.argv = ["shieldtx", *words]
    main()
