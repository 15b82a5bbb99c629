"""The port of the services to a message broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from shieldtx.domain.schedule import LATEST

BATCH_BYTES: Final = 64 * 1024 * 1024
"""The default limit on the bytes of records that a worker holds at a time."""

TopicPartition: TypeAlias = tuple[str, int]
"""A topic, as the broker names it, and one of its partitions."""

# Foreign clocks may count in other units.
_LATEST_MS: Final = int(LATEST.timestamp() * 1000)


class Record(NamedTuple):
    """A record for the broker: names as the broker knows them, everything else as bytes."""

    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class ReceivedRecord(NamedTuple):
    """A record as the subscriber read it; (topic, partition, offset) identifies it permanently."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    """When it was written, in milliseconds since 1970, by its producer or the broker."""

    @property
    def sent_at(self) -> datetime | None:
        """The time of its timestamp; None for no timestamp, and one that is no date."""
        if self.timestamp is None or not 0 <= self.timestamp <= _LATEST_MS:
            return None
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def size(self) -> int:
        """The bytes of its key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


class DeliveryOutcome(StrEnum):
    """The outcome of one attempt to publish a record."""

    ACKNOWLEDGED = "ACKNOWLEDGED"
    """The broker acknowledged the record."""

    REJECTED = "REJECTED"
    """The broker or its client refuses this record permanently, whatever else works."""

    REFUSED = "REFUSED"
    """Refused for now; an operator can repair the cause (unknown topic, not authorised)."""

    UNCONFIRMED = "UNCONFIRMED"
    """The client took the record, and no acknowledgement arrived: the log may contain it."""

    DEFERRED = "DEFERRED"
    """Deferred by the publisher, without a fault of the broker; a later attempt follows."""

    UNSENT = "UNSENT"
    """The record was not sent: the broker was known to be unreachable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """The outcome of one record; `reason` explains why it was not acknowledged."""

    outcome: DeliveryOutcome
    reason: str = ""
    partition: int | None = None
    offset: int | None = None
    """Where the log has an acknowledged record, if the caller asked and the broker returned it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backpressure:
    """How much the sent records overload the broker; truthy when less should be sent."""

    pause: float = 0.0
    """For how many seconds the broker asks to receive nothing."""
    full: bool = False
    """The client's buffers had no room for all of the last call, which was sent in parts."""

    def __bool__(self) -> bool:
        """Whether less should be sent."""
        return self.pause > 0 or self.full


class Publisher(Protocol):
    """Sends records; used by one thread at a time."""

    def publish(
        self, records: Sequence[Record], *, timeout: float, with_offsets: bool = False
    ) -> Sequence[Delivery]:
        """Send `records` in order, and return a delivery for each within `timeout` seconds.

        Deliveries have the order of the records. Per (topic, key) the log contains a later record
        only if it contains the earlier ones of this call. With `with_offsets`, acknowledgements
        include offsets, if the broker returns them. After any unclear response the implementation
        replaces its client. A failure of the broker raises nothing. When the broker asks for a
        pause, the records that were not handed over yet are DEFERRED.
        """
        ...

    def pressure(self) -> Backpressure:
        """Return how much the last call has overloaded the broker, as of now."""
        ...

    def close(self) -> None:
        """Disconnect from the broker, within a few seconds."""
        ...


class Subscriber(Protocol):
    """Reads the topics of one consumer group; used by one thread at a time."""

    def poll(
        self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES
    ) -> Sequence[ReceivedRecord]:
        """Return up to `limit` records, in order per partition, waiting up to `timeout` seconds.

        The record that brings the total size to `limit_bytes` is the last one, however large it is.
        Raises BrokerUnavailable when the broker is unreachable, TopicMissing when a topic does not
        exist.
        """
        ...

    def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Commit the offsets of these records and of all before them in their partitions.

        A commit that comes too late (another member owns the partition by now) is not an error: the
        new owner receives the records again, and the inbox removes the duplicates.
        """
        ...

    def rewind(self, records: Sequence[ReceivedRecord]) -> None:
        """Deliver these records again with the next polls: the caller could not store them.

        A partition continues at the first of its records in this call, whatever earlier calls
        contained: rewind the records of several polls in one call.
        """
        ...

    def pause(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Leave these partitions out of the polls from now on, and read all others.

        The pause also covers partitions that are assigned to this member later. Nothing is lost,
        and the assignment stays.
        """
        ...

    def has_caught_up(self) -> bool:
        """Whether this member has joined, and its polls have returned all its records.

        Paused partitions do not count. Raises BrokerUnavailable.
        """
        ...

    def close(self) -> None:
        """Leave the group, within a few seconds."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicState:
    """A topic and its properties on the broker."""

    name: str
    partitions: int
    replication: int
    topic_id: str | None = field(default=None, compare=False)
    """A topic that was deleted and recreated has a new id; None: the broker has no ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicCleanup:
    """When a broker deletes the records of a topic."""

    is_compacted: bool
    """Whether a key's new record deletes its older ones."""
    retention: timedelta | None
    """The age from which records are deleted; None: at no age."""


class TopicAdmin(Protocol):
    """Creates and lists topics."""

    def create(
        self, names: Sequence[str], *, partitions: int, replication: int | None
    ) -> Sequence[str]:
        """Create the topics that are missing and return their names; raises BrokerError.

        The replication None is the default of the cluster.
        """
        ...

    def cleanups(self, names: Sequence[str]) -> Mapping[str, TopicCleanup]:
        """Return when the records of existing topics are deleted; raises BrokerError.

        Without the topics whose settings the account must not see.
        """
        ...

    def describe(self, names: Sequence[str]) -> Mapping[str, TopicState | None]:
        """Return the state of each topic; None for a missing one. Raises BrokerError."""
        ...

    def foreign_members(self, group_id: str) -> Collection[str]:
        """Return the client ids of a consumer group's members that belong to other services.

        Raises BrokerError.
        """
        ...

    def close(self) -> None:
        """Disconnect from the broker."""
        ...


class Broker(Protocol):
    """A message broker: creates its publishers, subscribers and topic admins."""

    def publisher(self) -> Publisher:
        """Return a new publisher."""
        ...

    def subscriber(self, group: str, topics: list[str]) -> Subscriber:
        """Return a new member of a consumer group that reads these topics."""
        ...

    def topics(self) -> TopicAdmin:
        """Return an admin of the topics."""
        ...
