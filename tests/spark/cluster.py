"""A standalone Spark cluster on 127.0.0.1: a master and workers, from the package's own scripts."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

import pyspark

from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.free_ports import HOST, free_port

READY_S = 90
_SPARK = Path(pyspark.__file__).parent
# What a worker needs in addition to Spark itself, which ships its Python part with the job.
_WORKERS_PACKAGES = ("pyarrow", "pyarrow.libs", "numpy", "numpy.libs")


class SparkCluster:
    """A master and its workers, which the kernel ends when this process dies; executors follow."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._port, self._page = free_port(), free_port()
        self._processes: list[ChildProcess] = []

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._port}"

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def __enter__(self) -> Self:
        try:
            self._start("Master", "--port", self._port, "--webui-port", self._page)
            for _ in range(self._workers):
                name = f"Worker-{len(self._processes)}"
                own = ["--cores", 1, "--memory", "1g", "--work-dir", self._folder / name]
                self._start("Worker", *own, "--webui-port", free_port(), self.master, name=name)
            self._processes[-1].await_ready(self._is_whole, within=READY_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self._processes):
            process.stop(patience=5)

    def logs(self) -> str:
        """Return the logs of the executors."""
        return "\n".join(
            file.read_text(errors="replace") for file in sorted(self._folder.rglob("std*"))
        )

    def _start(self, kind: str, *arguments: object, name: str = "Master") -> None:
        module = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        command = [_SPARK / "bin" / "spark-class", module, "--host", HOST, *arguments]
        self._processes.append(
            ChildProcess.start(
                [str(word) for word in command],
                name=f"Spark's {name}",
                log=self._folder / f"{name}.log",
                environment=self._environment(),
                directory=self._folder,
            )
        )

    def _environment(self) -> dict[str, str]:
        """Return an environment in which nothing leads to this repository."""
        kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
        return {
            **kept,
            "SPARK_HOME": str(_SPARK),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }

    def _is_whole(self) -> bool:
        return alive_workers(self._page) == self._workers


def alive_workers(page: int) -> int:
    """Return the number of alive workers on the master's page at this port, or 0 while unknown.

    A starting master listens before it knows its pages, and registers them one by one. For a moment
    it answers 404, and for another moment with the HTML page instead of the JSON page.
    """
    try:
        with urlopen(f"http://{HOST}:{page}/json/", timeout=2) as answer:
            state: dict[str, Any] = json.load(answer)
    except (OSError, json.JSONDecodeError):
        return 0
    return int(state["aliveworkers"])


def bare_python(folder: Path) -> Path:
    """Make a Python that has PyArrow and nothing else: neither shieldtx nor its dependencies."""
    packages = folder / "packages"
    packages.mkdir()
    installed = _SPARK.parent
    for name in _WORKERS_PACKAGES:
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    python = folder / "python"
    # -S: without site-packages.
    python.write_text(
        "#!/bin/sh\n"
        f"export PYTHONPATH={shlex.quote(str(packages))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
        f'exec {shlex.quote(sys.executable)} -S "$@"\n'
    )
    python.chmod(0o755)
    return python
