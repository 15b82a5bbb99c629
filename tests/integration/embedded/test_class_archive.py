"""The archive of Kafka's classes: made once, read by each broker, ignored where it is unfit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL

import pytest

from shieldtx.embedded import EmbeddedKafka
from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.class_archive import ClassArchive
from shieldtx.embedded.jars import fetch_kafka
from shieldtx.embedded.kafka import archive_classes
from shieldtx.embedded.requirements import require_java


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """The archive of a cache that has only the jars of Kafka."""
    jars = fetch_kafka()
    cached = tmp_path / jars.name
    cached.symlink_to(jars)
    monkeypatch.setenv("SHIELDTX_CACHE", str(tmp_path))
    return ClassArchive.of(cached, require_java())


@pytest.fixture
def said() -> list[str]:
    return []


def files_of(broker: EmbeddedKafka) -> str:
    return Path(f"/proc/{broker.pid}/maps").read_text()


def test_brokers_read_the_archive_that_one_of_them_wrote(
    archive: ClassArchive, said: list[str]
) -> None:
    # Damaged, or made by a Java that was replaced.
    archive.path.write_bytes(b"damaged")
    assert not archive.options_to_read
    archive_classes(said.append)
    assert said == [f"Apache Kafka: its classes are in {archive.path}"]
    made = archive.path.stat().st_mtime_ns
    with EmbeddedKafka() as broker:
        assert str(archive.path) in files_of(broker)
    archive_classes(said.append)
    assert archive.path.stat().st_mtime_ns == made
    assert len(said) == 1


def _cut(archive: ClassArchive) -> None:
    with archive.path.open("r+b") as file:
        file.truncate(archive.path.stat().st_size // 2)


def _zeroed(archive: ClassArchive) -> None:
    with archive.path.open("r+b") as file:
        file.seek(archive.path.stat().st_size // 2)
        file.write(bytes(1_000_000))


def _of_other_jars(archive: ClassArchive) -> None:
    real = archive.jars.resolve()
    archive.jars.unlink()
    # As after another download: the same content, new times.
    shutil.copytree(real, archive.jars, copy_function=shutil.copy)


def _not_noted(archive: ClassArchive) -> None:
    archive.path.with_suffix(".sha256").unlink()


def _noise_noted(archive: ClassArchive) -> None:
    archive.path.with_suffix(".sha256").write_bytes(b"\xff\xfe" * 32)


@pytest.mark.parametrize("spoil", [_cut, _zeroed, _of_other_jars, _not_noted, _noise_noted])
def test_damaged_archive_is_not_given_to_java(
    archive: ClassArchive, spoil: Callable[[ClassArchive], None]
) -> None:
    # Java does not run here, so the content of the archive does not matter.
    archive.part.write_bytes(bytes(range(256)) * 10_000)
    archive.keep()
    assert archive.is_good
    spoil(archive)
    assert not archive.is_good
    assert archive.options_to_read == ()


def test_an_archive_of_a_broker_that_was_killed_is_not_kept(
    archive: ClassArchive, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = ChildProcess.send_signal
    monkeypatch.setattr(ChildProcess, "send_signal", lambda process, _: send(process, SIGKILL))
    archive_classes(said.append)
    assert "without an archive of its classes: exit status -9 before" in said[0]
    assert not archive.path.exists()


@pytest.mark.parametrize("why", ["java", "cache"])
def test_failed_archive_is_reported_and_brokers_start_without(
    archive: ClassArchive, said: list[str], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "java":
        monkeypatch.setattr(ClassArchive, "options_to_make", ("-XX:NoSuchOption=1",))
    else:
        # Root may write into any cache, so a directory takes the place of the lock file.
        archive.path.with_suffix(".lock").mkdir()
    archive_classes(said.append)
    [line] = said
    assert line.startswith("Apache Kafka: starts without an archive of its classes: ")
    assert ("NoSuchOption" if why == "java" else ".lock") in line
    assert not archive.path.exists()
