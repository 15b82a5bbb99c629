"""The cache of jars: complete and pinned, or absent; and the software that a machine needs for it.

A small Maven repository on 127.0.0.1 stands in front of the real Ivy. It serves the real JDBC
driver, so that its checksum is the pinned one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from shieldtx.embedded import DownloadFailed, RequirementMissing
from shieldtx.embedded.jars import JDBC_VERSION, fetch_jdbc_driver, fetch_kafka
from shieldtx.embedded.requirements import require_java, require_package
from tests.support import child_process
from tests.support.project import ROOT

JAR = f"postgresql-{JDBC_VERSION}.jar"
BASE = f"/org/postgresql/postgresql/{JDBC_VERSION}/postgresql-{JDBC_VERSION}"
POM = f"""<project><modelVersion>4.0.0</modelVersion><groupId>org.postgresql</groupId>
<artifactId>postgresql</artifactId><version>{JDBC_VERSION}</version></project>"""
FETCH = """
import sys
from pathlib import Path
from shieldtx.embedded.jars import fetch_jdbc_driver
print(fetch_jdbc_driver(Path(sys.argv[1]), lambda line: print(line, file=sys.stderr)))
"""


class Repository:
    """A Maven repository with the JDBC driver, which can stop in the middle of the file."""

    def __init__(self, jar: bytes) -> None:
        self.files = {f"{BASE}.pom": POM.encode(), f"{BASE}.jar": jar}
        self.jars_sent = 0
        self.stuck = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = self.files.get(request.path)
        if body is None:
            request.send_error(404)
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "GET":
            self._send(request, body)

    def _send(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        is_jar = request.path.endswith(".jar")
        self.jars_sent += is_jar
        half = len(body) // 2
        request.wfile.write(body[:half])
        if is_jar and not self.go_on.is_set():
            request.wfile.flush()
            self.stuck.set()
            self.go_on.wait()
        request.wfile.write(body[half:])


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    repository = Repository(fetch_jdbc_driver().read_bytes())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            repository.answer(self)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # Some tests kill a client in the middle of an answer.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="local"/><resolvers><ibiblio name="local"'
        f' m2compatible="true" root="http://127.0.0.1:{server.server_port}/"/></resolvers>'
        "</ivysettings>"
    )
    monkeypatch.setenv("SHIELDTX_IVY_SETTINGS", str(settings))
    yield repository
    repository.go_on.set()
    server.shutdown()
    server.server_close()


def start_fetch(cache: Path) -> subprocess.Popen[str]:
    return child_process.start(
        [sys.executable, "-c", FETCH, cache],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def fake_java(path: Path, version: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    path.chmod(0o755)


def test_a_download_is_reported_and_leaves_only_the_jars(
    tmp_path: Path, repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    cache, messages = tmp_path / "cache", []
    jar = fetch_jdbc_driver(cache, messages.append)
    assert jar.read_bytes() == repository.files[f"{BASE}.jar"]
    assert [path.name for path in jar.parent.iterdir()] == [JAR]
    assert messages[-1] == f"PostgreSQL's JDBC driver {JDBC_VERSION}: 1 jars in {jar.parent}"
    assert not list(cache.glob(".*")), "Ivy's own files are gone"
    assert capfd.readouterr() == ("", ""), "Ivy's output goes to its log"
    assert "127.0.0.1" in (cache / f"postgresql-{JDBC_VERSION}.log").read_text()
    fetch_jdbc_driver(cache)
    assert repository.jars_sent == 1, "the second time the cache has it"


def test_download_killed_half_way_does_not_block_the_next(
    tmp_path: Path, repository: Repository, eventually: Callable[..., None]
) -> None:
    cache = tmp_path / "cache"
    repository.go_on.clear()
    first = start_fetch(cache)
    assert repository.stuck.wait(60), "Ivy has half of the jar"
    (ivy,) = psutil.Process(first.pid).children()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    eventually(lambda: not ivy.is_running() or ivy.status() == psutil.STATUS_ZOMBIE, "Ivy is gone")
    assert len(list(cache.glob(".*.part"))) == 1
    assert not (cache / f"postgresql-{JDBC_VERSION}").exists()

    repository.go_on.set()
    assert fetch_jdbc_driver(cache).read_bytes() == repository.files[f"{BASE}.jar"]
    assert not list(cache.glob(".*.part")), "the half download is cleared away"


def test_two_processes_at_once_download_once(tmp_path: Path, repository: Repository) -> None:
    repository.go_on.clear()
    first = start_fetch(tmp_path / "cache")
    assert repository.stuck.wait(60)
    second = start_fetch(tmp_path / "cache")
    assert second.stderr is not None
    assert "waiting for another process" in second.stderr.readline()
    repository.go_on.set()
    results = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert first.returncode == second.returncode == 0
    assert results[0] == results[1] == f"{tmp_path}/cache/postgresql-{JDBC_VERSION}/{JAR}\n"
    assert repository.jars_sent == 1


def test_a_damaged_cache_is_repaired(tmp_path: Path, repository: Repository) -> None:
    jar = fetch_jdbc_driver(tmp_path)
    whole = jar.read_bytes()
    jar.write_bytes(whole[: len(whole) // 2])
    assert fetch_jdbc_driver(tmp_path).read_bytes() == whole
    assert repository.jars_sent == 2


def test_a_jar_other_than_the_pinned_one_is_refused(tmp_path: Path, repository: Repository) -> None:
    repository.files[f"{BASE}.jar"] += b"one byte more"
    with pytest.raises(DownloadFailed, match=f"{JAR} has another checksum than the pinned one"):
        fetch_jdbc_driver(tmp_path / "cache")
    assert not (tmp_path / "cache" / f"postgresql-{JDBC_VERSION}").exists()


def test_an_unreachable_repository_is_an_error_with_its_log_file(
    tmp_path: Path, repository: Repository
) -> None:
    repository.files.clear()
    with pytest.raises(DownloadFailed, match=rf"{JAR} is missing.*Is the network there.*\.log"):
        fetch_jdbc_driver(tmp_path / "cache")


def test_missing_java_is_reported_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequirementMissing) as missing:
        fetch_kafka(tmp_path / "cache")
    assert str(missing.value) == (
        "Java is not installed: install Java 17 or newer (Debian, Ubuntu: apt-get install"
        " openjdk-17-jre-headless) or point JAVA_HOME at one"
    )


@pytest.mark.parametrize(("version", "release"), [("1.8.0_392", 8), ("11.0.21", 11), ("16-ea", 16)])
def test_a_java_that_is_too_old_is_named(
    version: str, release: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "bin" / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RequirementMissing, match=rf"^\S+/bin/java is Java {release}: install"):
        require_java()


@pytest.mark.parametrize("version", ["17", "17.0.15", "21-ea", "25.0.1"])
def test_a_java_that_is_new_enough_is_taken_from_java_home(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "bin" / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == tmp_path / "bin" / "java"


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RequirementMissing, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        require_java()


def test_missing_package_is_named_with_its_install_command() -> None:
    with pytest.raises(RequirementMissing, match=r"pip install 'shieldtx\[embedded\]'"):
        require_package("pyspark_of_nobody")


def test_the_embedded_servers_import_no_pyspark() -> None:
    script = "import sys, shieldtx.embedded; print([m for m in sys.modules if 'pyspark' in m])"
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"
