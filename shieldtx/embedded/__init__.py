"""PostgreSQL and Apache Kafka, the real ones, on this machine and without Docker.

For the demo and for tests: nothing else of shieldtx imports this package.
"""

from shieldtx.embedded.kafka import EmbeddedKafka
from shieldtx.embedded.postgres import EmbeddedPostgres
from shieldtx.embedded.requirements import (
    DownloadFailed,
    EmbeddedError,
    RequirementMissing,
    ServerFailed,
)

__all__ = [
    "DownloadFailed",
    "EmbeddedError",
    "EmbeddedKafka",
    "EmbeddedPostgres",
    "RequirementMissing",
    "ServerFailed",
]
