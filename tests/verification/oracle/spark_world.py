"""A Spark and a PostgreSQL with the four services of histories, for many of them in a row."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from shieldtx.embedded import EmbeddedPostgres
from tests.spark.nights import Nights
from tests.spark.planting import SHARDS, Service
from tests.spark.session import interpreting, spark_session
from tests.support.migrated_databases import MigratedDatabases
from tests.verification.oracle.history import History
from tests.verification.oracle.nights import Said
from tests.verification.oracle.setting import NAMES
from tests.verification.oracle.spark_nights import SparkNights

SCHEMAS = (None, "shield", None, None)
"""Of the tables of each service."""


@contextmanager
def four_services(databases: MigratedDatabases) -> Iterator[Mapping[str, Service]]:
    """Make the databases of the services that histories are about."""
    with ExitStack() as open_:
        services = {}
        for name, schema in zip(NAMES, SCHEMAS, strict=True):
            url = open_.enter_context(databases.database(SHARDS, schema))
            services[name] = Service(name=name, url=url, schema=schema)
            open_.callback(services[name].close)
        yield services


@dataclass(frozen=True, kw_only=True, slots=True)
class SparkWorld:
    """Judges one history after the other; each has watermarks of its own."""

    services: Mapping[str, Service]
    nights: Nights
    _numbers: Iterator[int] = field(default_factory=count)

    def judge(self, history: History) -> Sequence[Said]:
        """Run the nights of a history."""
        name = f"history-{next(self._numbers)}"
        nights = SparkNights(history=history, services=self.services, nights=self.nights, name=name)
        return [night.said for night in nights.run()]


@contextmanager
def spark_world() -> Iterator[SparkWorld]:
    """Start both."""
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="histories-")))
        postgres = open_.enter_context(EmbeddedPostgres(fsync=False))
        services = open_.enter_context(four_services(MigratedDatabases(postgres)))
        spark = open_.enter_context(spark_session(folder / "warehouse"))
        open_.enter_context(interpreting(spark))
        yield SparkWorld(services=services, nights=Nights(spark, folder))
