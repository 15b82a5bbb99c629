"""Real PostgreSQL and Apache Kafka servers on this machine, without Docker.

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
