"""The figures that are measured, with their targets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Direction(Enum):
    """The side of its target on which a figure should be."""

    AT_LEAST = "≥"
    AT_MOST = "≤"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One line of the table; `name` is its key in `build/bench.json`."""

    name: str
    title: str
    target: float
    direction: Direction
    unit: str = ""
    digits: int = 2

    def is_met_by(self, value: float) -> bool:
        """Whether a measured value is on the right side of the target."""
        if self.direction is Direction.AT_LEAST:
            return value >= self.target
        return value <= self.target

    def shown(self, value: float) -> str:
        """Return a value in the format of the table."""
        return f"{value:,.{self.digits}f}{self.unit}"


def _least(name: str, title: str, target: float, unit: str = "", digits: int = 2) -> Figure:
    return Figure(
        name=name,
        title=title,
        target=target,
        direction=Direction.AT_LEAST,
        unit=unit,
        digits=digits,
    )


def _most(name: str, title: str, target: float, unit: str = "", digits: int = 2) -> Figure:
    return Figure(
        name=name,
        title=title,
        target=target,
        direction=Direction.AT_MOST,
        unit=unit,
        digits=digits,
    )


FIGURES = (
    _least(
        "relay_kafka_python_vs_txoutbox_ordered",
        "relay with kafka-python, against txoutbox ordered with aiokafka",
        3.0,
        " times",
    ),
    _least(
        "relay_kafka_python_vs_baseline",
        "relay with kafka-python, against raw kafka-python send()",
        0.8,
    ),
    _least(
        "relay_confluent_vs_txoutbox_ordered",
        "relay with confluent-kafka, against txoutbox ordered",
        5.0,
        " times",
    ),
    _least("relay_two_processes_vs_one", "two relay processes, against one", 1.0),
    _most("publish_p50_ms", "commit to record readable in Kafka, 500 events/s, p50", 5.0, " ms", 1),
    _most(
        "publish_p99_ms", "commit to record readable in Kafka, 500 events/s, p99", 25.0, " ms", 1
    ),
    _most("effect_p50_ms", "commit to effect committed downstream, p50", 15.0, " ms", 1),
    _most("effect_p99_ms", "commit to effect committed downstream, p99", 60.0, " ms", 1),
    _most("add_cost", "loss of throughput of a one-row ORM transaction with outbox.add", 0.25),
    _least(
        "consumer_vs_single",
        "consumer, one INSERT an event, against plain SQLAlchemy",
        4.0,
        " times",
    ),
    _least(
        "consumer_waiting_handlers",
        "coroutine handlers that wait 20 ms, 16 keys at a time, against one at a time",
        8.0,
        " times",
        1,
    ),
    _least(
        "consumer_waiting_threads",
        "the same with plain handlers in threads",
        8.0,
        " times",
        1,
    ),
    _least(
        "consumer_list_vs_single",
        "consumer with a handler of lists, against plain SQLAlchemy",
        20.0,
        " times",
    ),
    _least(
        "consumer_duplicates",
        "consumer with every second record a duplicate, per record, against none",
        1.0,
    ),
    _least(
        "refused_5_vs_none",
        "consumer that refuses one of twenty events, against none",
        0.7,
    ),
    _least("refused_all_vs_none", "consumer that refuses all events, against none", 0.4),
    _least("held_snapshot", "relay with a snapshot held open, against the clean run", 0.8),
    _least("backlog_flatness", "relay by size of its backlog, slowest against fastest", 0.85),
    _most(
        "delayed_rows_cost", "loss of throughput of new events with rows in back-off or delay", 0.10
    ),
    _most(
        "delay_late_p99_ms",
        "due time to record readable in Kafka, with 1,000,000 delayed rows, p99",
        1_000.0,
        " ms",
        0,
    ),
    _most(
        "held_keys_fresh_p99_ms",
        "commit to record readable in Kafka, with 1,000,000 rows of 5,000 blocked keys, p99",
        1_000.0,
        " ms",
        0,
    ),
    _least("half_vs_add", "half message prepared and committed, against a plain event", 0.4),
    _least("checks_per_s", "check-backs with a checker that answers at once", 2_000.0, "/s", 0),
    _most("half_rows_cost", "loss of throughput of new events with open half messages", 0.10),
    _most("hot_key", "p99 of other keys with a hot key, against no hot key", 2.0, " times"),
    _most("relay_rss_mb", "memory of a relay at exit", 150.0, " MB", 0),
    _most("relay_rss_growth", "memory of a relay at exit, against a tenth of its events", 1.10),
    _most("relay_rss_large_mb", "memory of a relay, 3,000 events of 900 KB", 400.0, " MB", 0),
    _most("consumer_rss_large_mb", "memory of a consumer, 3,000 events of 900 KB", 400.0, " MB", 0),
    _least("purge_rows_per_s", "purge while the relay publishes", 20_000.0, " rows/s", 0),
    _most("import_s", "import of shieldtx in a new process", 0.15, " s", 2),
    _most(
        "consumer_recovery_s",
        "kill -9 of a consumer, restarted at once, to the effect of a new event",
        3.0,
        " s",
        1,
    ),
    _most(
        "relay_recovery_s",
        "kill -9 of one of two relays on a host, to the last record of its shards",
        5.0,
        " s",
        1,
    ),
    _most("purge_cost", "loss of throughput of the relay during the purge", 0.15),
    _most("metrics_cost", "loss of throughput of the relay with metrics", 0.03),
)
