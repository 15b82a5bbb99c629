"""What the services need of a message broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

BATCH_BYTES: Final = 64 * 1024 * 1024
"""How much a worker has of records at a time, unless it is told otherwise."""

TopicPartition: TypeAlias = tuple[str, int]
"""A topic, as the broker names it, and one of its partitions."""


class Record(NamedTuple):
    """A record for the broker: names as the broker knows them, everything else as bytes."""

    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class ReceivedRecord(NamedTuple):
    """A record as it was read; (topic, partition, offset) names it for ever."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def size(self) -> int:
        """The bytes of its key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


class DeliveryOutcome(StrEnum):
    """How the publication of one record ended."""

    ACKNOWLEDGED = "ACKNOWLEDGED"
    """The broker has it."""

    REJECTED = "REJECTED"
    """The broker or its client refuses this record for ever, whatever else works."""

    REFUSED = "REFUSED"
    """Refused for now; somebody may mend that (unknown topic, not authorised)."""

    UNCONFIRMED = "UNCONFIRMED"
    """It was handed to the client, and nobody can tell whether it is in the log."""

    DEFERRED = "DEFERRED"
    """It was kept back on purpose, with nothing wrong at the broker: its turn comes again."""

    UNSENT = "UNSENT"
    """It never left: the broker was known to be away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """The outcome of one record; `reason` says why it was not acknowledged."""

    outcome: DeliveryOutcome
    reason: str = ""
    partition: int | None = None
    offset: int | None = None
    """Where an acknowledged record lies, if that was asked for and the broker has said it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backpressure:
    """How hard a broker is pressed by what it is sent; truthy when it is too hard."""

    pause: float = 0.0
    """For how many seconds the broker wants to be sent nothing."""
    full: bool = False
    """The client's buffers had no room for all of the last call, which went in parts."""

    def __bool__(self) -> bool:
        """Whether less should be sent."""
        return self.pause > 0 or self.full


class Publisher(Protocol):
    """Sends records; used by one thread at a time."""

    def publish(
        self, records: Sequence[Record], *, timeout: float, with_offsets: bool = False
    ) -> Sequence[Delivery]:
        """Send `records` in order and answer for each, in the same order, within `timeout` seconds.

        Per (topic, key) a later record is in the log only if the earlier ones of this call are.
        With `with_offsets`, acknowledgements say where the records lie, as far as the broker does.
        After anything but clear answers the client behind this port is replaced by a fresh one.
        Never raises for what the broker does. When the broker asks for a pause, what has not been
        handed over by then is DEFERRED.
        """
        ...

    def pressure(self) -> Backpressure:
        """Tell how hard the last call has pressed the broker, as of now."""
        ...

    def close(self) -> None:
        """Let go of the broker, within a few seconds."""
        ...


class Subscriber(Protocol):
    """Reads the topics of one consumer group; used by one thread at a time."""

    def poll(
        self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES
    ) -> Sequence[ReceivedRecord]:
        """Return up to `limit` records, in order per partition, waiting up to `timeout` seconds.

        The record that brings their sizes to `limit_bytes` is the last one, however large it is.
        Raises BrokerUnavailable when the broker is away, TopicMissing when a topic does not exist.
        """
        ...

    def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Remember that these records, and all before them in their partitions, are taken care of.

        A commit that comes too late (the partition is somebody else's by now) is no error: the
        records come again there, and the inbox knows them.
        """
        ...

    def rewind(self, records: Sequence[ReceivedRecord]) -> None:
        """Have these records delivered again by the next polls: they could not be taken care of.

        A partition continues at the first of its records in this call, whatever earlier calls were
        given: records of several polls are rewound in one call.
        """
        ...

    def pause(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Leave these partitions out of the polls from now on, and read all others.

        It holds for partitions that become this member's later, too; nothing is lost by it, and no
        partition changes hands.
        """
        ...

    def has_caught_up(self) -> bool:
        """Whether this member has joined, and its polls have brought all that is on its partitions.

        Paused partitions do not count. Raises BrokerUnavailable.
        """
        ...

    def close(self) -> None:
        """Leave the group, within a few seconds."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicState:
    """A topic as the broker has it."""

    name: str
    partitions: int
    replication: int
    topic_id: str | None = field(default=None, compare=False)
    """Another one after it was deleted and created again; None: the broker has none."""


class TopicAdmin(Protocol):
    """Makes and lists topics."""

    def create(self, names: Sequence[str], *, partitions: int, replication: int) -> Sequence[str]:
        """Create the topics that are missing and return their names; raises BrokerError."""
        ...

    def describe(self, names: Sequence[str]) -> Mapping[str, TopicState | None]:
        """Tell what each topic looks like; None for one that does not exist. Raises BrokerError."""
        ...

    def strangers(self, group_id: str) -> Collection[str]:
        """Return the client ids of a consumer group's members that belong to other services.

        Raises BrokerError.
        """
        ...

    def close(self) -> None:
        """Let go of the broker."""
        ...


class Broker(Protocol):
    """A message broker: what makes publishers, subscribers and topic admins for it."""

    def publisher(self) -> Publisher:
        """Return a new publisher."""
        ...

    def subscriber(self, group: str, topics: list[str]) -> Subscriber:
        """Return a new member of a consumer group that reads these topics."""
        ...

    def topics(self) -> TopicAdmin:
        """Return an admin of the topics."""
        ...
