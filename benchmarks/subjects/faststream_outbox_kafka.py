"""faststream-outbox 0.19 with FastStream's Kafka broker, as its relay tutorial sets it up.

It follows the guide to performance: batched deletes of 100 rows, larger fetches, autovacuum by
churn. Several workers are faster, but do not keep the order of keys, which it does not promise.
"""

from __future__ import annotations

import asyncio
import logging

from faststream.kafka import KafkaBroker, KafkaResponse
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.autovacuum import outbox_autovacuum_ddl
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.harness.child_protocol import ProgressReporter

QUEUE = "bench"


async def relay(reporter: ProgressReporter) -> None:
    """Relay until the harness ends the run."""
    job = reporter.job
    metadata = MetaData()
    table = make_outbox_table(metadata, table_name="outbox")
    url = job["dsn"].replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url, pool_size=job["workers"] + 2)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(text(outbox_autovacuum_ddl("outbox")))
        await connection.exec_driver_sql(job["fill"])
    async with engine.connect() as connection:
        alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await alone.execute(text("VACUUM ANALYZE"))
        await alone.execute(text("CHECKPOINT"))
    to_kafka = KafkaBroker(
        job["bootstrap"],
        acks="all",
        enable_idempotence=True,
        logger=None,
        log_level=logging.WARNING,
    )
    from_outbox = OutboxBroker(engine, outbox_table=table, logger=None)
    published = 0

    @to_kafka.publisher(job["topic"])
    @from_outbox.subscriber(
        QUEUE,
        max_workers=job["workers"],
        fetch_batch_size=job["batch"],
        terminal_flush_batch_size=100,
        min_fetch_interval=0.01,
    )
    async def handle(body: dict) -> KafkaResponse:  # type: ignore[type-arg]
        nonlocal published
        published += 1
        if published % 100 == 0:
            reporter.sample(published)
        return KafkaResponse(body, key=body["key"].encode())

    await to_kafka.connect()
    await asyncio.to_thread(reporter.ready)
    await from_outbox.start()
    while not reporter.is_over:
        await asyncio.sleep(0.05)
        reporter.sample(published)
    await from_outbox.stop()
    await to_kafka.stop()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(relay(ProgressReporter()))
