"""A real Kafka Connect on 127.0.0.1: a standalone worker with its connectors."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.free_ports import HOST, free_port
from shieldtx.embedded.requirements import ServerFailed, require_java
from shieldtx.embedded.server import EmbeddedServer
from tests.support.connect_jars import fetch_connect

STOP_S: Final = 10.0
REQUEST_S: Final = 10.0
_JVM: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)

# Without the proxy of the environment.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class KafkaConnect(EmbeddedServer):
    """A standalone worker; each connector is as in the body of a request that creates it.

    The worker never stores its position while it runs, so that after a kill it writes again all
    records since its start.
    """

    name = "Kafka Connect"

    def __init__(self, bootstrap: str, connectors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(None, port=free_port())
        self._bootstrap = bootstrap
        self._connectors = connectors

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(patience=STOP_S)
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _launch(self) -> ChildProcess:
        java, jars = require_java(), fetch_connect()
        directory = self._open_directory()
        worker = directory / "worker.properties"
        settings = {
            "bootstrap.servers": self._bootstrap,
            "listeners": f"http://{HOST}:{self.port}",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": str(directory / "offsets"),
            "offset.flush.interval.ms": "3600000",
            # All jars name their plugins: a scan of the class path takes seconds.
            "plugin.discovery": "service_load",
        }
        worker.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        files = []
        for connector in self._connectors:
            files.append(directory / f"{connector['name']}.json")
            files[-1].write_text(json.dumps(connector))
        return ChildProcess.start(
            [
                java,
                *_JVM,
                *_LOGGING,
                "-cp",
                f"{jars}/*",
                "org.apache.kafka.connect.cli.ConnectStandalone",
                worker,
                *files,
            ],
            name=self.name,
            log=directory / "connect.log",
            directory=directory,
        )

    def states(self, connector: str) -> list[str]:
        """Return the states of a connector's tasks."""
        return [task["state"] for task in self._tasks(connector)]

    def request(self, method: str, path: str) -> Any:
        """Call the worker's interface for operators; raises HTTPError for a refusal."""
        request = urllib.request.Request(f"http://{HOST}:{self.port}{path}", method=method)
        with _OPENER.open(request, timeout=REQUEST_S) as answer:
            return json.loads(answer.read() or b"null")

    def _answers(self) -> bool:
        """Return whether all tasks run; raises ServerFailed for one that has failed."""
        try:
            tasks = [self._tasks(connector["name"]) for connector in self._connectors]
        except OSError:  # those of HTTP included: it does not listen, or has no connector yet
            return False
        if failed := [each["trace"] for task in tasks for each in task if "trace" in each]:
            raise ServerFailed(f"{self.name}: {failed[0]}")
        return all([each["state"] for each in task] == ["RUNNING"] for task in tasks)

    def _tasks(self, connector: str) -> list[dict[str, Any]]:
        status = self.request("GET", f"/connectors/{connector}/status")
        return list(status["tasks"])
