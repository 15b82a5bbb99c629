"""shieldtx's own worker processes, started as an operator would."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.data.events import SOURCE
from benchmarks.harness.child_process import BUILD, ROOT
from benchmarks.harness.servers import RunEnvironment
from shieldtx.embedded.child_process import ChildProcess

SHIELDTX: Final = Path(sys.executable).with_name("shieldtx")
READY_S: Final = 60.0
STOP_S: Final = 30.0


@contextmanager
def worker(
    place: RunEnvironment,
    *arguments: str,
    log: str | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ChildProcess]:
    """Run `shieldtx relay` or `shieldtx consume <group>` until the end of the block."""
    with killed(place, *arguments, log=log, environment=environment) as process:
        yield process
        process.send_signal(signal.SIGTERM)
        process.finish(within=STOP_S)


@contextmanager
def killed(
    place: RunEnvironment,
    *arguments: str,
    log: str | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ChildProcess]:
    """Run a worker, and end it with `kill -9` at the end of the block."""
    process = _started(place, arguments, log, environment)
    try:
        yield process
    finally:
        process.kill()


def _started(
    place: RunEnvironment,
    arguments: Sequence[str],
    log_name: str | None,
    environment: Mapping[str, str],
) -> ChildProcess:
    """Return a worker that is ready."""
    name = f"shieldtx {' '.join(arguments)}"
    log = BUILD / "bench-logs" / f"{log_name or name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    process = ChildProcess.start(
        [SHIELDTX, "--app", "benchmarks.subjects.command_line:shield", *arguments],
        name=name,
        log=log,
        directory=ROOT,
        environment=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "SHIELDTX_SOURCE": SOURCE,
            "SHIELDTX_DATABASE_URL": place.url,
            "SHIELDTX_KAFKA_BOOTSTRAP": place.bootstrap,
            "SHIELDTX_TOPIC_PREFIX": place.prefix,
            **environment,
        },
    )
    try:
        process.await_ready(lambda: "ready: " in log.read_text(errors="replace"), within=READY_S)
    except BaseException:
        process.kill()
        raise
    return process
