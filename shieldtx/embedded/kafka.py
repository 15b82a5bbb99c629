"""A real Apache Kafka on 127.0.0.1: one node, broker and controller in one process (KRaft)."""

from __future__ import annotations

import base64
import signal
import socket
import struct
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.class_archive import ClassArchive
from shieldtx.embedded.directories import exclusive
from shieldtx.embedded.free_ports import HOST, free_port
from shieldtx.embedded.jars import fetch_kafka
from shieldtx.embedded.requirements import EmbeddedError, ServerFailed, require_java
from shieldtx.embedded.server import EmbeddedServer
from shieldtx.embedded.status_line import Progress

FORMAT_S: Final = 60.0
STOP_S: Final = 5.0
ARCHIVE_S: Final = 60.0
_ENDED_BY_SIGTERM: Final = {0, 128 + signal.SIGTERM, -signal.SIGTERM}
_NODE_ID: Final = 1
_METADATA_HEAD: Final = struct.Struct(">iii")  # size, correlation id, number of brokers
_SMALL_JVM: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)


class EmbeddedKafka(EmbeddedServer):
    """An Apache Kafka broker of this process, without authentication, on 127.0.0.1 only.

    Topics are not created by use. The log directory survives `stop`, `kill` and `start`. `close`,
    or leaving the `with` block, removes it unless `directory` was given. The port stays the same
    for the lifetime of the object. Clients get `advertised_port`, for a proxy between them and the
    broker. `settings` are the broker's own and override the ones made here.

    After one call of `shieldtx.embedded.kafka.archive_classes`, it starts in half the time.
    """

    name = "Apache Kafka"
    _leaves_archive: ClassVar[bool] = False

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        advertised_port: int | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(directory, port=port or free_port())
        self._advertised_port = advertised_port or self.port
        self._settings = settings

    @property
    def bootstrap(self) -> str:
        """The broker's own address, not the advertised one: "127.0.0.1:port"."""
        return f"{HOST}:{self.port}"

    def stop(self) -> None:
        """Shut the broker down gracefully, by force after 5 s, and keep its data."""
        if self._process is not None:
            self._process.stop(patience=STOP_S)
            self._process = None

    def kill(self) -> None:
        """End the broker with SIGKILL and keep its data."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _launch(self) -> ChildProcess:
        java, jars = require_java(), fetch_kafka()
        directory = self._open_directory()
        properties = self._write_properties(directory)
        archive = ClassArchive.of(jars, java)
        fast = archive.options_to_read
        run: list[str | Path] = [*_SMALL_JVM, *_LOGGING, "-cp", f"{jars}/*"]
        if not (directory / "data" / "meta.properties").exists():
            self._format([java, *fast, *run], directory, properties)
        share = archive.options_to_make if self._leaves_archive else fast
        return ChildProcess.start(
            [java, *share, *run, "kafka.Kafka", properties],
            name=self.name,
            log=directory / "kafka.log",
            directory=directory,
        )

    def _write_properties(self, directory: Path) -> Path:
        # A new port each time: only this broker connects to its controller, so nothing stores the
        # port.
        controller = f"{HOST}:{free_port()}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(_NODE_ID),
            "controller.quorum.voters": f"{_NODE_ID}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self._advertised_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(directory / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "8",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "8",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # After a kill, the controller admits the broker only when its former session has
            # expired: 3 s instead of 9.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "1000",
            **self._settings,
        }
        properties = directory / "server.properties"
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        properties.write_text("".join(lines), encoding="utf-8")
        return properties

    def _format(self, run: list[str | Path], directory: Path, properties: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode("ascii")
        format_storage = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}")
        ChildProcess.start(
            [*run, *format_storage, "--config", properties],
            name="Apache Kafka's StorageTool",
            log=directory / "format.log",
            directory=directory,
        ).finish(within=FORMAT_S)

    def _answers(self) -> bool:
        """Return whether the broker names itself, unfenced, in a metadata response.

        The request uses a socket of its own. A client would follow the advertised port, where the
        proxy may not listen yet, and would retry in the background.
        """
        api_key, version, correlation_id, no_client_id, no_topics = 3, 1, 1, -1, 0
        request = struct.pack(">hhihi", api_key, version, correlation_id, no_client_id, no_topics)
        try:
            with socket.create_connection((HOST, self.port), timeout=2.0) as connection:
                connection.sendall(struct.pack(">i", len(request)) + request)
                answer = connection.makefile("rb").read(_METADATA_HEAD.size)
                _size, _correlation_id, brokers = _METADATA_HEAD.unpack(answer)
        except (
            OSError,
            struct.error,
        ):  # no listener, or a closed connection
            return False
        return bool(brokers > 0)


class _ArchivingKafka(EmbeddedKafka):
    """Leaves an archive of its classes when it is stopped."""

    _leaves_archive = True

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            if not self._process.wait(ARCHIVE_S):
                raise ServerFailed(f"its archive was not complete within {ARCHIVE_S:.0f} s")
            if self._process.exit_status not in _ENDED_BY_SIGTERM:
                raise ServerFailed(
                    f"exit status {self._process.exit_status} before its archive was complete"
                )


def archive_classes(progress: Progress | None = None) -> None:
    """Run a broker once, so that all later brokers on this machine start in half the time.

    This takes some seconds, and 50 MB next to the jars. Where it is impossible, for example in a
    read-only cache, `progress` gets the reason, and brokers start as before. Raises
    RequirementMissing and DownloadFailed like `fetch_kafka`.
    """
    java, jars = require_java(), fetch_kafka(progress=progress)
    archive = ClassArchive.of(jars, java)
    if archive.is_good:
        return
    try:
        with exclusive(archive.path.with_suffix(".lock")):
            if archive.is_good:
                return
            archive.part.unlink(missing_ok=True)
            with _ArchivingKafka() as broker:
                broker.stop()
            archive.keep()
    except (EmbeddedError, OSError) as error:
        result = f"starts without an archive of its classes: {error}"
    else:
        result = f"its classes are in {archive.path}"
    if progress is not None:
        progress(f"{EmbeddedKafka.name}: {result}")
