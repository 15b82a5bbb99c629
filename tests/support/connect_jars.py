"""The jars of Kafka Connect and of Debezium's connector for PostgreSQL, pinned as Kafka's own.

`make pin-jars` writes the list next to this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shieldtx.embedded.jars import KAFKA_VERSION, Bundle, fetch
from shieldtx.embedded.status_line import Progress

DEBEZIUM_VERSION: Final = "3.6.1.Final"

CONNECT: Final = Bundle(
    name=f"connect-{KAFKA_VERSION}-debezium-{DEBEZIUM_VERSION}",
    title=f"Kafka Connect {KAFKA_VERSION} with Debezium {DEBEZIUM_VERSION}",
    roots=(
        # Debezium depends on earlier versions of Kafka's jars: those of the roots count.
        f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-api:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-transforms:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"io.debezium:debezium-connector-postgres:{DEBEZIUM_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    transitive=True,
    folder=Path(__file__).parent,
)


def fetch_connect(progress: Progress | None = None) -> Path:
    """Return the folder with the jars, fetched (40 MB) if they are not cached."""
    return fetch(CONNECT, progress=progress)
