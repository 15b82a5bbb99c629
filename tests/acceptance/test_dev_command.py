"""`shieldtx dev`: two servers, their settings, their data, and all that is left of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
from kafka.admin import KafkaAdminClient

from tests.acceptance.conftest import SHIELDTX
from tests.support import child_process
from tests.support.project import ROOT

ENDED_S = 60


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL may enter as its account: root's tmp_path of pytest is closed."""
    with tempfile.TemporaryDirectory(prefix="shieldtx-test-") as name:
        Path(name).chmod(0o755)
        (Path(name) / "tmp").mkdir()
        yield Path(name)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment without settings, and with a folder of its own for temporary data."""
    kept = {"SHIELDTX_CACHE", "SHIELDTX_MAVEN_REPOSITORY"}
    own = {k: v for k, v in os.environ.items() if k in kept or not k.startswith("SHIELDTX_")}
    return own | {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)} | more


def refused(*arguments: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SHIELDTX, "dev", *arguments],
        check=False,
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=ENDED_S,
    )


@contextmanager
def running(*arguments: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command until it is ready; yield it with what is on its standard output."""
    with (folder / "stdout").open("w") as out:
        process = child_process.start(
            [*SHIELDTX, "dev", *arguments],
            cwd=folder,
            env=environment(folder),
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        assert process.stderr is not None
        printed = [""]
        while not printed[-1].startswith("ready: "):
            printed.append(process.stderr.readline())
            assert printed[-1], "".join(printed)
        yield process, (folder / "stdout").read_text()
    finally:
        process.kill()
        process.communicate()


def values_of(lines: str) -> dict[str, str]:
    """Return what a shell exports that runs these lines."""
    done = subprocess.run(
        ["bash", "-euc", f"{lines}\nenv"], env={}, capture_output=True, text=True, check=True
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def query(settings: dict[str, str], variable: str, statement: str) -> list[tuple[object, ...]]:
    url = settings[variable].replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else []


def topics(settings: dict[str, str]) -> list[str]:
    client = KafkaAdminClient(bootstrap_servers=settings["SHIELDTX_KAFKA_BOOTSTRAP"])
    try:
        return client.list_topics()
    finally:
        client.close()


def servers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = psutil.Process(process.pid).children()
    assert sorted(child.name() for child in found) == ["java", "postgres"]
    return found


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_ends_both_servers_and_leaves_nothing(
    folder: Path, number: signal.Signals, eventually: Callable[..., None]
) -> None:
    with running("--env-file", "servers.env", folder=folder) as (process, lines):
        settings = values_of(lines)
        assert [line.split("=")[0] for line in lines.splitlines()] == [
            "export SHIELDTX_KAFKA_BOOTSTRAP",
            "export SHIELDTX_DATABASE_URL",
        ]
        assert query(settings, "SHIELDTX_DATABASE_URL", "SELECT 1") == [(1,)]
        assert topics(settings) == []
        file = folder / "servers.env"
        assert file.stat().st_mode & 0o777 == 0o600
        assert values_of(file.read_text()) == settings
        servers = servers_of(process)
        process.send_signal(number)
        assert process.wait(ENDED_S) == 0
        for server in servers:
            eventually(lambda server=server: has_ended(server), f"{server} has ended")
        assert not file.exists()
        assert not list(folder.glob("tmp/*/*-*")), "the data is deleted"


def test_killed_command_keeps_data_and_settings_of_its_folder(
    folder: Path, eventually: Callable[..., None]
) -> None:
    options = ("orders", "stock", "--data", "data", "--env-file", "servers.env")
    with running(*options, folder=folder) as (process, lines):
        settings = values_of(lines)
        assert {"ORDERS_DATABASE_URL", "STOCK_DATABASE_URL"} < settings.keys()
        query(settings, "ORDERS_DATABASE_URL", "CREATE TABLE kept AS SELECT 7 AS value")
        same_data = refused("--data", "data", folder=folder)
        same_file = refused("--env-file", "servers.env", folder=folder)
        servers = servers_of(process)
        process.kill()
        process.wait()
        for server in servers:
            eventually(lambda server=server: has_ended(server), f"{server} has ended")

    assert same_data.returncode == same_file.returncode == 1
    assert f"the servers of {folder}/data are running" in same_data.stderr
    assert "servers.env has the settings of servers that are running" in same_file.stderr
    assert (folder / "servers.env").exists()
    with running(*options, folder=folder) as (_, again):
        assert again == lines
        assert query(settings, "ORDERS_DATABASE_URL", "SELECT value FROM kept") == [(7,)]
        assert topics(settings) == []


@pytest.mark.parametrize("name", ["Orders", "a-b", "'; DROP", "1a", "", "postgres", "template1"])
def test_unfit_database_name_is_a_usage_error(folder: Path, name: str) -> None:
    done = refused("orders", name, folder=folder)
    assert done.returncode == 2
    assert "Invalid value" in done.stderr


def test_file_that_another_program_wrote_is_kept(folder: Path) -> None:
    (folder / ".env").write_text("A=theirs\n")
    done = refused("--env-file", ".env", folder=folder)
    assert done.returncode == 1
    assert done.stderr == (
        "error: .env exists and is not a file of `shieldtx dev`: name another file\n"
    )
    assert (folder / ".env").read_text() == "A=theirs\n"


def test_file_in_a_missing_folder_is_refused_before_the_start(folder: Path) -> None:
    done = refused("--env-file", "missing/servers.env", folder=folder)
    assert done.returncode == 1
    assert done.stderr == "error: missing is not a folder: create it\n"


def test_port_taken_by_another_program_is_named(folder: Path) -> None:
    (folder / "data").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (folder / "data" / "kafka.port").write_text(f"{port}\n")
        done = refused("--data", "data", folder=folder)
    assert done.returncode == 1
    assert f"error: port {port} of {folder}/data/kafka.port is in use" in done.stderr


@pytest.mark.parametrize("text", ["", "many", "65536", "-1"])
def test_file_without_a_port_is_named(folder: Path, text: str) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "postgres.port").write_text(text)
    done = refused("--data", "data", folder=folder)
    assert done.returncode == 1
    assert f"{folder}/data/postgres.port has '{text}', which is not a port" in done.stderr


def test_missing_java_is_reported_before_a_download(folder: Path) -> None:
    done = refused(folder=folder, PATH=str(folder), JAVA_HOME="", SHIELDTX_CACHE=str(folder))
    assert done.returncode == 1
    assert done.stderr.startswith("error: Java is not installed: install Java 17 or newer")


@pytest.mark.parametrize(
    ("program", "name"), [("postgres", "PostgreSQL"), ("java", "Apache Kafka")]
)
def test_end_of_a_server_ends_the_command(folder: Path, program: str, name: str) -> None:
    with running("--env-file", "servers.env", folder=folder) as (process, _):
        (server,) = [each for each in servers_of(process) if each.name() == program]
        server.kill()
        _, errors = process.communicate(timeout=ENDED_S)

    assert process.returncode == 1
    assert errors.startswith(f"error: {name} has ended: it was ended by SIGKILL; the end of its")
    assert len(errors.splitlines()) > 1, "the lines of its log"
    assert not (folder / "servers.env").exists()


def test_former_command_names_the_new_one(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shieldtx.embedded", "orders"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "`shieldtx dev DATABASE... --env-file servers.env`" in done.stderr
