"""Tests of the code that is shipped to workers of a real Spark cluster without shieldtx."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pyspark
import pytest

import shieldtx
from shieldtx._resources import PACKAGE, resource_folder
from shieldtx.domain.events import new_event_id
from shieldtx.embedded import EmbeddedKafka
from shieldtx.reconcile import spark_launcher
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.request import (
    BrokerAccess,
    ReconcileRequest,
    ServiceDatabase,
    to_json,
)
from shieldtx.reconcile.verdicts import Verdict
from spark import packaging
from tests.spark import read_on_cluster
from tests.spark.cluster import SparkCluster, bare_python
from tests.spark.planting import Service
from tests.spark.publishing import Topic

REPOSITORY = PACKAGE.parent
WITHIN_S = 500
# Defaults as an administrator sets them for a cluster.
DEFAULTS = """
spark.executor.memory 512m
spark.executor.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with SparkCluster(folder) as started:
        yield started
    left = [p for p in psutil.process_iter(["cmdline"]) if str(folder) in str(p.info["cmdline"])]
    assert psutil.wait_procs(left, timeout=30)[1] == []


@pytest.fixture(scope="module")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture
def as_installed(tmp_path: Path) -> Path:
    """Lay the packages out as in a wheel: `spark` within `shieldtx`."""
    folder = tmp_path / "installed"
    shutil.copytree(PACKAGE, folder / "shieldtx")
    shutil.copytree(resource_folder("spark"), folder / "shieldtx" / "spark")
    return folder


def test_one_file_holds_all_that_workers_import(tmp_path: Path, worker_python: Path) -> None:
    packed = packaging.pack(tmp_path / "code.zip")
    told = run_bare(worker_python, packed, "spark.sources.kafka_data_source")
    assert told.stdout.split() == [
        f"{packed}/spark/sources/kafka_data_source.py",
        f"{packed}/kafka/__init__.py",
    ]
    assert packed.stat().st_size < 3_000_000


def test_packed_installation_imports_from_its_file_too(
    tmp_path: Path, worker_python: Path, as_installed: Path
) -> None:
    packed = tmp_path / "code.zip"
    code = "import sys, pathlib, shieldtx.spark.packaging as s; s.pack(pathlib.Path(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-P", "-c", code, packed],
        env={**os.environ, "PYTHONPATH": str(as_installed)},
        cwd=tmp_path,
        check=True,
    )
    told = run_bare(worker_python, packed, "shieldtx.spark.sources.kafka_data_source")
    assert told.stdout.split()[0] == f"{packed}/shieldtx/spark/sources/kafka_data_source.py"


def run_bare(python: Path, packed: Path, module: str) -> subprocess.CompletedProcess[str]:
    """Import a module from the file; print where the module and the Kafka client come from."""
    paths = [packed, *Path(pyspark.__file__).parent.glob("python/lib/*.zip")]
    code = f"import kafka, {module} as m; print(m.__file__, kafka.__file__)"
    return subprocess.run(
        [python, "-P", "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=packed.parent,
        check=True,
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(WITHIN_S + 100)
@pytest.mark.parametrize("package", ["spark", "shieldtx.spark"])
def test_workers_without_our_code_read_a_topic(
    package: str,
    cluster: SparkCluster,
    worker_python: Path,
    as_installed: Path,
    kafka: EmbeddedKafka,
    jdbc_jar: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS)
    topic = Topic(kafka.bootstrap).make(partitions=4)
    events = [topic.event(key=f"k{n}") for n in range(200)]
    topic.publish(*events, events[7])
    request = ReconcileRequest(
        services=(ServiceDatabase(name="orders", url="postgresql://none"),),
        folder=tmp_path,
        broker=BrokerAccess(bootstrap=kafka.bootstrap, topic_prefix=topic.prefix),
        master=cluster.master,
        jdbc_jar=jdbc_jar,
    )
    driver = tmp_path / "driver.py"
    shutil.copy(read_on_cluster.__file__, driver)
    done = subprocess.run(
        [sys.executable, "-P", driver, package, topic.logical],
        input=to_json(request) + b"\n",
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY if package == "spark" else as_installed),
            "PYSPARK_PYTHON": str(worker_python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(tmp_path),
        },
        # With a checkout, the working directory is the checkout, also for the Pythons of Spark.
        cwd=REPOSITORY if package == "spark" else tmp_path,
        capture_output=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3_000:] + cluster.logs()[-3_000:]
    home = REPOSITORY if package == "spark" else as_installed / "shieldtx"
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "records": 201,
        "events": 200,
        "obstacles": [],
        "left_out": [],
        "origin": str(home / "spark"),
    }


@pytest.mark.timeout(WITHIN_S + 100)
def test_run_on_a_cluster_finds_the_same_as_on_one_machine(
    cluster: SparkCluster,
    kafka: EmbeddedKafka,
    orders: Service,
    stock: Service,
    jdbc_jar: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic(kafka.bootstrap).make(partitions=2)
    named = {"topic": topic.logical}
    for _ in range(20):
        stock.receive(orders.write(**named), group="reserve", source="orders", **named)
    lost = orders.write(**named)
    ghost = stock.receive(new_event_id(), group="reserve", source="orders", **named)
    request = ReconcileRequest(
        services=(orders.database(), stock.database()),
        folder=tmp_path / "report",
        broker=BrokerAccess(bootstrap=kafka.bootstrap, topic_prefix=topic.prefix),
        margin=timedelta(minutes=10),
        master=cluster.master,
        jdbc_jar=jdbc_jar,
    )
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--executor-memory 512m pyspark-shell")
    result = spark_launcher.run(request)
    assert result.outcome is RunOutcome.MISMATCHES, result.problem + cluster.logs()[-3_000:]
    found = {(row.event_id, row.verdict) for row in result.findings.first_rows}
    assert {
        (str(lost), Verdict.MISSING_DOWNSTREAM),
        (str(ghost), Verdict.UNKNOWN_UPSTREAM),
    } <= found
    assert result.findings.totals == {
        Verdict.MATCHED: 20,
        Verdict.MISSING_DOWNSTREAM: 1,
        Verdict.UNKNOWN_UPSTREAM: 1,
        # None of them was ever published.
        Verdict.ABSENT_FROM_TOPIC: 21,
    }


def test_local_workers_are_sent_nothing(spark, tmp_path):
    packaging.ship(spark, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "PYTHONSAFEPATH" not in spark.sparkContext.environment
    assert shieldtx.__doc__ != "shieldtx, as far as Spark's workers need it."
