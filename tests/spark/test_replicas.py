"""Tests of reading from replicas: real standbys, of this primary and of another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from shieldtx.embedded import EmbeddedPostgres
from shieldtx.embedded.postgres_cluster import programs, unprivileged_account
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.store.schema import Schema
from spark.sources.server_checks import Servers
from tests.spark.nights import a_day_passes
from tests.spark.planting import TOPIC

ORDERS = "orders"
DAY = 24 * 60


class Cluster:
    """A primary and a standby of it."""

    def __init__(self, primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
        self.primary = primary
        self.standby = standby


@pytest.fixture(scope="module")
def cluster() -> Iterator[Callable[[], Cluster]]:
    with ExitStack() as stack:

        def start() -> Cluster:
            primary = stack.enter_context(EmbeddedPostgres(fsync=False))
            for name in (ORDERS, "stock"):
                primary.create_database(name)
                migrate(primary.url(name))
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            copy(primary, directory)
            standby = EmbeddedPostgres(directory, fsync=False)
            return Cluster(primary, stack.enter_context(standby))

        yield start


@pytest.fixture(scope="module")
def own(cluster: Callable[[], Cluster]) -> Cluster:
    return cluster()


def migrate(url: str) -> None:
    engine = create_engine(url)
    Schema(engine).upgrade()
    engine.dispose()


def copy(primary: EmbeddedPostgres, directory: Path) -> None:
    """Make the data directory of a standby that streams from the primary."""
    data, account = directory / "data", unprivileged_account()
    program = programs(primary.directory, account) / "pg_basebackup"
    address = make_url(primary.url("postgres")).set(drivername="postgresql")
    source = address.render_as_string(hide_password=False)
    command = [program, "-d", source, "-D", data, "-R", "-X", "stream", "-c", "fast"]
    subprocess.run(command, check=True)
    shutil.copy(primary.directory / "password", directory / "password")
    for path in (directory, data, *data.rglob("*")):
        if account is not None:
            os.chown(path, account.uid, account.gid)


def obstacle(url: str, replica_url: str) -> str:
    service = ServiceDatabase(name=ORDERS, url=url, replica_url=replica_url)
    servers = Servers(request=ReconcileRequest(services=(service,), folder=Path("unused")))
    return servers.clocks()[ORDERS].obstacle


def test_a_replica_of_the_primary_is_read(own: Cluster) -> None:
    assert obstacle(own.primary.url(ORDERS), own.standby.url(ORDERS)) == ""


def test_a_replica_of_another_cluster_is_an_obstacle(
    own: Cluster, cluster: Callable[[], Cluster]
) -> None:
    other = cluster()
    # The other primary has written more, so its positions are ahead of all of this one's.
    engine = create_engine(other.primary.url("postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for _ in range(3):
            connection.execute(text("SELECT pg_switch_wal()"))
            connection.execute(text("CREATE TABLE filling AS SELECT generate_series(1, 9)"))
            connection.execute(text("DROP TABLE filling"))
    engine.dispose()

    found = obstacle(own.primary.url(ORDERS), other.standby.url(ORDERS))

    assert found.startswith("`replica_url` of orders leads to another cluster (system identifier")


def test_a_replica_of_another_database_is_an_obstacle(own: Cluster) -> None:
    found = obstacle(own.primary.url(ORDERS), own.standby.url("stock"))

    assert found.startswith("`replica_url` of orders leads to another database (object id")


def test_role_without_server_access_still_detects_other_database(own: Cluster) -> None:
    engine = create_engine(own.primary.url(ORDERS))
    with engine.begin() as connection:
        for statement in (
            "CREATE ROLE reader LOGIN PASSWORD 'reads' IN ROLE pg_read_all_stats",
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
        ):
            connection.execute(text(statement))
    engine.dispose()

    def as_reader(url: str) -> str:
        parsed = make_url(url).set(username="reader", password="reads")
        return parsed.render_as_string(hide_password=False)

    primary, standby = own.primary, own.standby
    assert obstacle(as_reader(primary.url(ORDERS)), as_reader(standby.url(ORDERS))) == ""
    found = obstacle(as_reader(primary.url(ORDERS)), as_reader(standby.url("stock")))
    assert "another database" in found


@pytest.mark.parametrize("push_down", [True, False])
def test_replica_that_hides_rows_of_a_named_group_is_reported(nights, services, push_down):
    """No stream of events was there to name the obstacle, and the run was clean."""
    orders, stock, mail = services
    reserve = ExpectedGroup(name="reserve", topics=(TOPIC,))
    of = orders.database(), stock.database(groups=(reserve,))
    stock.receive(orders.write(age=2 * DAY), group="reserve", source=ORDERS, age=2 * DAY)
    assert nights.run(*of).outcome is RunOutcome.CLEAN
    a_day_passes(orders)
    orders.write(age=DAY / 2)
    # The service has an outbox without a row.
    misled = replace(of[0], replica_url=mail.url)

    night = nights.run(misled, of[1], push_down=push_down)

    assert night.outcome is RunOutcome.NOT_JUDGED
    assert any("`replica_url` of orders leads to another" in each for each in night.problems)
