"""A driver: reads a topic on the cluster that its request names, and prints the result.

The driver is its own process, because a process has one Spark session.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.request import from_json


def main() -> None:
    # `spark`, or `shieldtx.spark` as in a wheel.
    package, topic = sys.argv[1:]
    job, topics = (import_module(f"{package}.{name}") for name in ("__main__", "sources.topics"))
    request = from_json(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as scratch, job.session(request, scratch) as spark:
        reading = topics.read(spark, request, [(topic, TxKind.COMMIT)])
        seen = {"obstacles": reading.obstacles, "left_out": reading.left_out}
        if reading.records is not None:
            (events,) = reading.records.agg(F.countDistinct("event_id")).first()
            seen |= {"records": reading.records.count(), "events": events}
        print(json.dumps(seen | {"origin": str(Path(job.__file__).parent)}), flush=True)


if __name__ == "__main__":
    main()
