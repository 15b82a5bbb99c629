"""The databases of the services as Spark reads them: queries with many rows, over JDBC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from shieldtx.reconcile.jdbc import jdbc_address
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.reconcile.window import Memory

from .server_checks import Servers, named_in_errors, tables_of

_FETCH_SIZE = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Databases(Servers):
    """The queries of a run to the databases of its services, after Spark has started."""

    spark: SparkSession
    lately: datetime
    """A time before the watermark of every pair: rows with later changes may be in flight."""
    memories: Mapping[str, Memory] = field(default_factory=dict)
    """By service that purges rows; computed before any row was read."""

    def frame(
        self,
        service: ServiceDatabase,
        query: str,
        *,
        parts: Sequence[str] | None = None,
        **names: str,
    ) -> DataFrame:
        """Return the rows of a query; for `names`, see `rows`.

        Each of `parts` is a condition and a separate read, at its own time.
        """
        address = jdbc_address(service.name, service.replica_url or service.url)
        properties = {
            **address.properties,
            "options": f"{address.properties.get('options', '')} {self.limit}".strip(),
            "fetchsize": str(_FETCH_SIZE),
        }
        given: dict[str, Any] = {"predicates": list(parts)} if parts else {}
        relation = f"({query.format(**tables_of(service), **names)}) AS relation"
        with named_in_errors(service):
            return self.spark.read.jdbc(address.url, relation, properties=properties, **given)
