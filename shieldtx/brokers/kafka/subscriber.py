"""Reading the topics of a consumer group from Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any, Final

from kafka import TopicPartition
from kafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import MemberState, OffsetAndMetadata

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.consumer_patches import Consumer
from shieldtx.brokers.kafka.pauses import Pauses
from shieldtx.brokers.kafka.topic_admin import KafkaTopics
from shieldtx.brokers.kafka.topic_identity import TopicIdentities
from shieldtx.errors import BrokerError, BrokerUnavailable, TopicMissing
from shieldtx.ports.broker import BATCH_BYTES, ReceivedRecord, TopicPartition

log = logging.getLogger(__name__)

_CONNECT_S: Final = 5.0
_COMMIT_S: Final = 5.0
_CLOSE_S: Final = 3.0
_JOIN_S: Final = 3.0
_JOIN_LOOK_MS: Final = 100
# Enough for the client to notice that it has to join.
_LEAST_MS: Final = 10
# The client reconnects by itself: shorter gaps are no outage.
_AWAY_S: Final = 1.0

# A commit by somebody to whom the partitions do not belong any more.
_TOO_LATE: Final = (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


class KafkaSubscriber:
    """A member of a consumer group.

    Offsets are committed by `commit` only; a group without offsets begins with the oldest record.
    Joining, topics and partitions that appear later are the business of `poll`.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        group: str,
        topics: Sequence[str],
        session_timeout: float = 15.0,
        max_poll_interval: float = 300.0,
        join_timeout: float = 10.0,
        request_timeout: float = 10.0,
        metadata_max_age: float = 60.0,
    ) -> None:
        """Connect to nothing yet; all times in seconds.

        The partitions of a member that died are given to others after `session_timeout`, those of a
        member that has not polled for `max_poll_interval` (its handlers take too long) at once. One
        that is not in the group after `join_timeout` begins anew; where slow members hold it up for
        longer, that does no harm. A broker that does not answer within `request_timeout` is away.
        New partitions are found within `metadata_max_age`.
        """
        self._connection = connection
        self._topics = list(topics)
        self._identities = TopicIdentities(self._topics)
        self._join_timeout = join_timeout
        self._options = {
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            # Records of another producer's aborted transaction never happened.
            "isolation_level": "read_committed",
            "session_timeout_ms": int(session_timeout * 1000),
            "heartbeat_interval_ms": int(session_timeout * 1000 / 5),
            "max_poll_interval_ms": int(max_poll_interval * 1000),
            "request_timeout_ms": int(request_timeout * 1000),
            "metadata_max_age_ms": int(metadata_max_age * 1000),
            # Of what brokers send at a time: the client's own 50 MB would wait beside a batch.
            "fetch_max_bytes": 16 * 1024 * 1024,
            # As much as Kafka can send. Its own 100 MB would end the connection before a larger
            # record, again and again, and polls would come back empty.
            "receive_message_max_bytes": 2**31 - 1,
            "metrics_enabled": False,
        }
        self._pauses = Pauses()
        self._consumer: Any = None
        self._network: Any = None
        self._away_since: float | None = None
        self._joining_since: float | None = None

    def poll(
        self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES
    ) -> Sequence[ReceivedRecord]:
        """Return up to `limit` records, in order per partition, waiting up to `timeout` seconds.

        The record that brings their sizes to `limit_bytes` is the last one, however large it is.
        Raises BrokerUnavailable, TopicMissing, and BrokerError for what waiting does not mend. It
        takes some seconds more where it has to connect or to join the group first.
        """
        self._check_joining()
        consumer = self._open()
        with self._client_errors("reading"):
            self._identities.look(self._network.cluster)
            self._pauses.renew(consumer)
            consumer.take_at_most(limit_bytes)
            fetched = self._fetch(consumer, timeout, limit)
            records = self._kept(consumer, fetched)
        if not records:
            self._check_reachable()
            return []
        self._away_since = None
        return records

    def _kept(self, consumer: Any, fetched: dict[Any, list[Any]]) -> list[ReceivedRecord]:
        """Return what this member is to have of fetched records; any error rewinds all of them."""
        try:
            kept = self._pauses.without_held(consumer, self._without_misread(consumer, fetched))
            return [_received(record) for records in kept.values() for record in records]
        except BaseException:
            # The client's position is after these records: the next commit would skip them.
            for place, records in fetched.items():
                with suppress(ValueError):  # not assigned any more
                    consumer.seek(place, records[0].offset)
            raise

    def _fetch(self, consumer: Any, timeout: float, limit: int) -> dict[Any, list[Any]]:
        """Poll the client, on and on while it is joining the group.

        The client forgets an assignment that comes between two polls, and joins once more, which
        disturbs the whole group (kafka-python 3.0.12). So short polls alone might never join.
        """
        patience = time.monotonic() + _JOIN_S
        fetched: dict[Any, list[Any]] = consumer.poll(
            timeout_ms=max(_LEAST_MS, int(timeout * 1000)), max_records=limit
        )
        while not fetched and not _has_joined(consumer) and time.monotonic() < patience:
            fetched = consumer.poll(timeout_ms=_JOIN_LOOK_MS, max_records=limit)
        return fetched

    def _without_misread(self, consumer: Any, fetched: dict[Any, Any]) -> dict[Any, Any]:
        """Leave out the records of topics that were made anew, and begin with those once more."""
        anew = self._identities.recreated(self._network.cluster)
        places = [place for place in consumer.assignment() or () if place.topic in anew]
        if places:
            log.warning("%s made anew: read from the beginning", ", ".join(sorted(anew)))
            consumer.seek_to_beginning(*places)
        return {place: found for place, found in fetched.items() if place.topic not in anew}

    def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Remember these records as taken care of; raises BrokerUnavailable."""
        if self._consumer is None:
            return
        offsets: dict[TopicPartition, int] = {}
        for record in records:
            place = TopicPartition(record.topic, record.partition)
            offsets[place] = max(record.offset + 1, offsets.get(place, 0))
        # The broker takes offsets of any partition from any member, and would move another's back.
        mine = self._consumer.assignment()
        commits = {p: OffsetAndMetadata(o, "", -1) for p, o in offsets.items() if p in mine}
        if not commits:
            return
        with self._client_errors("committing offsets"):
            try:
                self._consumer.commit(commits, timeout_ms=int(_COMMIT_S * 1000))
            except _TOO_LATE as error:
                log.warning("offsets came too late, their records are delivered again: %s", error)

    def rewind(self, records: Sequence[ReceivedRecord]) -> None:
        """Have these records delivered again, where their partitions are still this member's."""
        if self._consumer is None:
            return
        offsets: dict[TopicPartition, int] = {}
        for record in records:
            place = TopicPartition(record.topic, record.partition)
            offsets[place] = min(record.offset, offsets.get(place, record.offset))
        for place, offset in offsets.items():
            with suppress(ValueError):  # not assigned
                self._consumer.seek(place, offset)

    def hold(self, places: AbstractSet[TopicPartition]) -> None:
        """Leave these partitions out of the polls, and read all others."""
        self._pauses.hold(places)

    def has_caught_up(self) -> bool:
        """Whether this member's polls have brought all there is; raises BrokerUnavailable."""
        consumer = self._consumer
        if consumer is None or not _has_joined(consumer):
            return False
        mine = list((consumer.assignment() or set()) - self._pauses.held)
        if not mine:
            return True
        with self._client_errors("asking where the partitions end"):
            ends = consumer.end_offsets(mine)
            # Joining anew meanwhile takes partitions away.
            return all(
                _has_joined(consumer)
                and (position := consumer.position(place)) is not None
                and position >= end
                for place, end in ends.items()
            )

    def close(self) -> None:
        """Leave the group, so that others take over at once."""
        self._drop()

    @contextmanager
    def _client_errors(self, doing: str) -> Iterator[None]:
        """Translate the client's errors; after anything but an outage replace it by a new one."""
        try:
            with self._connection.translated(doing):
                yield
        except BrokerUnavailable:
            raise
        except BrokerError:
            self._drop()
            raise
        except Exception as error:
            # Its state is anybody's guess, and what was not committed comes again.
            self._drop()
            raise BrokerError(f"the Kafka client failed while {doing}: {error!r}") from error

    def _open(self) -> Any:
        if self._consumer is None:
            self._check_topics()
            self._consumer, self._network = self._connection.open(
                Consumer, within=_CONNECT_S, **self._options
            )
            self._consumer.subscribe(self._topics)
            self._await_metadata()
            self._away_since = self._joining_since = None
        return self._consumer

    def _check_topics(self) -> None:
        admin = KafkaTopics(self._connection, timeout=_CONNECT_S)
        try:
            missing = admin.missing(self._topics)
        finally:
            admin.close()
        if missing:
            raise TopicMissing(
                f"no topic {', '.join(missing)} at {self._connection.bootstrap_servers}; "
                "create it with `shieldtx topics create`"
            )

    def _await_metadata(self) -> None:
        """Wait until the client knows the topics: before, it would deal out no partitions."""
        cluster = self._network.cluster
        deadline = time.monotonic() + _CONNECT_S
        while any(cluster.partitions_for_topic(topic) is None for topic in self._topics):
            left = deadline - time.monotonic()
            answered = Event()
            cluster.request_update().add_both(lambda _, answered=answered: answered.set())
            if not answered.wait(max(0.0, left)):
                return

    def _check_joining(self) -> None:
        """Begin anew with a client that does not get into the group.

        A leader whose poll ends while it deals out partitions that were added forgets about it: it
        reads on from its old ones without heartbeats, cannot commit, and does not notice
        (kafka-python 3.0.12).
        """
        now = time.monotonic()
        if self._consumer is None or _has_joined(self._consumer):
            self._joining_since = None
        elif self._joining_since is None:
            self._joining_since = now
        elif now - self._joining_since > self._join_timeout:
            log.warning("not in the consumer group after %.0f s: joining anew", self._join_timeout)
            self._drop()

    def _check_reachable(self) -> None:
        """Raise BrokerUnavailable when no broker has been connected for a while.

        The client itself never says so: it tries again, and polls come back empty.
        """
        brokers = [broker.node_id for broker in self._network.cluster.brokers()]
        # It talks to the group's coordinator over a connection of its own.
        nodes = brokers + [f"coordinator-{broker}" for broker in brokers]
        if any(self._network.connected(node) for node in nodes):
            self._away_since = None
            return
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since >= _AWAY_S:
            raise self._connection.unreachable(
                for_seconds=now - self._away_since, reason=self._network.failure
            )

    def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        try:
            consumer.close(autocommit=False, timeout_ms=int(_CLOSE_S * 1000))
        except Exception as error:  # noqa: BLE001  it then stops half-way, its thread still running
            log.warning("the Kafka consumer did not close in order: %r", error)
            self._network.close()


def _has_joined(consumer: Any) -> bool:
    return bool(consumer.group_metadata().state == MemberState.STABLE)


def _received(record: Any) -> ReceivedRecord:
    return ReceivedRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
    )
