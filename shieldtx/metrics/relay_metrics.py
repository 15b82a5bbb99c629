"""The metrics of the relays of a process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as Total

from shieldtx.metrics import names
from shieldtx.metrics.batch_histogram import BatchHistogram
from shieldtx.metrics.guard import Guard
from shieldtx.metrics.limited_labels import LimitedLabels

_OF_TOPIC = ("topic", "kind")


class RelayMetrics:
    """The metrics of the relays of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.guard = Guard()
        self.topics = LimitedLabels(names.MOST_TOPICS)
        self.destinations = LimitedLabels(names.MOST_TOPICS)
        self.events = Total(
            "shieldtx_relay_events",
            "Events whose outcome the relay has written back, those included that came too late.",
            [*_OF_TOPIC, "outcome"],
            registry=registry,
        )
        self.age = BatchHistogram(
            "shieldtx_relay_publish_age_seconds",
            "Seconds from the writing of an event to its settlement, chosen delays included.",
            _OF_TOPIC,
            names.FINE,
        )
        registry.register(self.age)
        self.claim = Histogram(
            "shieldtx_relay_claim_seconds",
            "Duration of the statement that claims a batch of events.",
            buckets=names.FINE,
            registry=registry,
        )
        self.settle = Histogram(
            "shieldtx_relay_settle_seconds",
            "Duration of the transaction that writes the outcomes of a batch.",
            buckets=names.FINE,
            registry=registry,
        )
        self.batch_limit = Gauge(
            "shieldtx_relay_batch_limit",
            "Maximum number of events of the last claim; smaller while the broker is overloaded.",
            registry=registry,
        )
        self.lost = Total(
            "shieldtx_relay_settle_lost",
            "Events whose outcome came too late: another relay had taken them over, or an earlier "
            "write-back had no response.",
            registry=registry,
        )
        self.shards = Gauge(
            "shieldtx_relay_shards", "Shards that the relay owns.", registry=registry
        )
        self.takeovers = Total(
            "shieldtx_relay_takeovers",
            "Shards that the relay has taken, at its start or from another relay.",
            registry=registry,
        )
        self.leases_lost = Total(
            "shieldtx_relay_leases_lost",
            "Shards that the relay owned and that another relay has taken.",
            registry=registry,
        )
        self.throttled = Total(
            "shieldtx_relay_throttled_seconds",
            "Seconds for which the broker has asked the relay to send nothing.",
            registry=registry,
        )
        self.operation = Histogram(
            names.OPERATION,
            "Duration of sending a batch to the broker, for each topic of the batch.",
            [
                names.SYSTEM,
                names.OPERATION_NAME,
                names.OPERATION_TYPE,
                names.DESTINATION,
                names.ERROR,
            ],
            buckets=names.DURATIONS,
            registry=registry,
        )
        self.sent = Total(
            names.SENT,
            "Messages that the relay was about to send, by the error that it met.",
            [names.SYSTEM, names.OPERATION_NAME, names.DESTINATION, names.ERROR],
            registry=registry,
        )
