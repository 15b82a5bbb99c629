"""Names, labels and buckets that several metrics have.

The four names that begin with `messaging_`, their labels and their buckets are those of
OpenTelemetry's semantic conventions 1.44 for messaging clients, as Prometheus writes them
(https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/).
"""

from __future__ import annotations

from typing import Final

MOST_TOPICS: Final = 200
"""The maximum number of topics in the labels of one process."""
MOST_ERRORS: Final = 50
"""The maximum number of error types in the labels of one process."""

OPERATION: Final = "messaging_client_operation_duration_seconds"
SENT: Final = "messaging_client_sent_messages"
CONSUMED: Final = "messaging_client_consumed_messages"
PROCESSED: Final = "messaging_process_duration_seconds"

SYSTEM: Final = "messaging_system"
OPERATION_NAME: Final = "messaging_operation_name"
OPERATION_TYPE: Final = "messaging_operation_type"
DESTINATION: Final = "messaging_destination_name"
GROUP: Final = "messaging_consumer_group_name"
ERROR: Final = "error_type"

KAFKA: Final = "kafka"

DURATIONS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Upper bounds of the buckets of durations, in seconds, as the conventions advise."""

FINE: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds of the buckets of database statements, and of the ages of events, in seconds."""
