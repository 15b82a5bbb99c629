"""An inbox in plain SQLAlchemy: one transaction per message with inbox row and effect."""

from __future__ import annotations

import json
from uuid import UUID

from kafka import KafkaConsumer
from sqlalchemy import Column, MetaData, Table, Text, Uuid, create_engine, insert
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.application import EFFECT
from shieldtx.scheduling.gc_tuning import few_collections

INBOX = Table(
    "bench_inbox",
    MetaData(),
    Column("event_id", Uuid, primary_key=True),
    Column("consumer_group", Text, primary_key=True),
)
RECEIVE = postgresql.insert(INBOX).on_conflict_do_nothing().returning(INBOX.c.event_id)
APPLY = insert(EFFECT)
SAY_EVERY = 100


@few_collections()
def main() -> None:
    """Consume until the harness ends the run."""
    reporter = ProgressReporter()
    job = reporter.job
    engine = create_engine(job["url"])
    INBOX.metadata.create_all(engine)
    consumer = KafkaConsumer(
        job["topic"],
        bootstrap_servers=job["bootstrap"],
        group_id=job["group"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=500,
    )
    reporter.ready()
    dealt_with = 0
    while not reporter.is_over:
        for records in consumer.poll(timeout_ms=200).values():
            for record in records:
                event_id = UUID(dict(record.headers)["ce_id"].decode())
                body = json.loads(record.value)
                with Session(engine) as session, session.begin():
                    row = {"event_id": event_id, "consumer_group": job["group"]}
                    if session.execute(RECEIVE, row).first() is not None:
                        session.execute(APPLY, {"key": body["key"], "n": body["n"]})
                dealt_with += 1
                if dealt_with % SAY_EVERY == 0:
                    reporter.sample(dealt_with)
            consumer.commit()
        reporter.sample(dealt_with)
    consumer.close()
    engine.dispose()


if __name__ == "__main__":
    main()
