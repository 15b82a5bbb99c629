"""txoutbox 0.2.2 with aiokafka, ordered per key, as its README sets up PostgreSQL and Kafka.

Its defaults of 50 rows per round and 10 keys at once are raised to the best values measured here: a
round of 1,000 rows, all its keys at once. The producer is durable and collects batches.
"""

from __future__ import annotations

import asyncio

import asyncpg
from aiokafka import AIOKafkaProducer
from txoutbox import OutboxMessage, Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage

from benchmarks.harness.child_protocol import ProgressReporter


async def relay(reporter: ProgressReporter) -> None:
    """Relay round by round until the harness ends the run."""
    job = reporter.job
    pool = await asyncpg.create_pool(job["dsn"])
    outbox = PostgresStorage(pool)
    await outbox.create_schema()
    await pool.execute(job["fill"])
    for statement in ("VACUUM ANALYZE", "CHECKPOINT"):
        await pool.execute(statement)
    producer = AIOKafkaProducer(
        bootstrap_servers=job["bootstrap"],
        acks="all",
        enable_idempotence=True,
        linger_ms=5,
        max_batch_size=262_144,
    )
    await producer.start()

    async def publish(message: OutboxMessage) -> None:
        await producer.send_and_wait(
            message.topic, message.payload, key=message.key.encode() if message.key else None
        )

    config = RelayConfig(batch_size=job["batch"], concurrency=job["batch"])
    relay = Relay(outbox, publish, config=config)
    await asyncio.to_thread(reporter.ready)
    published = 0
    while not reporter.is_over:
        done = await relay.run_once()
        published += done.published
        reporter.sample(published)
        if done.failed:
            raise RuntimeError(f"the relay was not left alone: {done}")
        if not done.claimed:
            await asyncio.sleep(0.002)
    await producer.stop()
    await pool.close()


if __name__ == "__main__":
    asyncio.run(relay(ProgressReporter()))
