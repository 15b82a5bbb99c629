"""The archive of Kafka's classes: made once, read by each broker, and no obstacle where unfit."""

from __future__ import annotations

from pathlib import Path

import pytest

from shieldtx.embedded import EmbeddedKafka
from shieldtx.embedded.class_archive import ClassArchive
from shieldtx.embedded.jars import fetch_kafka
from shieldtx.embedded.kafka import archive_classes
from shieldtx.embedded.requirements import require_java


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """The archive of a cache that has Kafka's jars alone."""
    jars = fetch_kafka()
    cached = tmp_path / jars.name
    cached.symlink_to(jars)
    monkeypatch.setenv("SHIELDTX_CACHE", str(tmp_path))
    return ClassArchive.of(cached, require_java())


def files_of(broker: EmbeddedKafka) -> str:
    return Path(f"/proc/{broker.pid}/maps").read_text()


def test_brokers_read_what_one_of_them_has_left(archive: ClassArchive) -> None:
    assert not archive.options_to_read
    said: list[str] = []
    archive_classes(said.append)
    assert said == [f"Apache Kafka: its classes are in {archive.path}"]
    made = archive.path.stat().st_mtime_ns
    with EmbeddedKafka() as broker:
        assert str(archive.path) in files_of(broker)
    archive_classes(said.append)
    assert archive.path.stat().st_mtime_ns == made
    assert len(said) == 1


def test_an_archive_that_java_cannot_read_is_ignored(archive: ClassArchive) -> None:
    archive.path.write_bytes(b"damaged")
    with EmbeddedKafka() as broker:
        assert broker.pid is not None
        assert str(archive.path) not in files_of(broker)


def test_where_java_cannot_make_one_it_is_said_and_brokers_start_as_before(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClassArchive, "options_to_write", ("-XX:NoSuchOption=1",))
    said: list[str] = []
    archive_classes(said.append)
    [line] = said
    assert line.startswith("Apache Kafka: starts without an archive of its classes: ")
    assert "NoSuchOption" in line
    assert not archive.exists
