"""Reading the topics of a consumer group from Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Final

from kafka import TopicPartition as KafkaPartition
from kafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata

from shieldtx.brokers.kafka.assignment import Pauses, TopicIdentities
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.dead_members import ASSIGNORS
from shieldtx.brokers.kafka.membership import Membership
from shieldtx.ports.broker import BATCH_BYTES, ReceivedRecord, TopicPartition

log = logging.getLogger(__name__)

_COMMIT_S: Final = 5.0
_JOIN_S: Final = 3.0
_JOIN_LOOK_MS: Final = 100
# Enough for the client to notice that it has to join.
_LEAST_MS: Final = 10

# Errors of a commit for partitions that no longer belong to the member.
_TOO_LATE: Final = (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


class KafkaSubscriber:
    """A member of a consumer group.

    Offsets are committed by `commit` only; a group without offsets begins with the oldest record.
    `poll` joins the group, and finds topics and partitions that appear later.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        group: str,
        topics: Sequence[str],
        session_timeout: float = 15.0,
        heartbeat_interval: float = 3.0,
        max_poll_interval: float = 300.0,
        join_timeout: float = 10.0,
        request_timeout: float = 10.0,
        metadata_max_age: float = 60.0,
        instance_id: str | None = None,
        replaces_dead: bool = True,
    ) -> None:
        """Store the options without connecting; all times in seconds.

        The partitions of a dead member are reassigned after `session_timeout`, those of a member
        that has not polled for `max_poll_interval` (its handlers take too long) at once. A member
        that is not in the group after `join_timeout` is replaced; if slow members block it for
        longer, it simply retries. A broker that does not respond within `request_timeout` is
        unreachable. New partitions are found within `metadata_max_age`.

        `replaces_dead` removes members whose process has died on this host. A member with an
        `instance_id` (static membership) keeps its partitions when it leaves, for a new client
        with this id that joins within the session timeout. Two clients must not share it.
        """
        self._group = group
        self._assigned: frozenset[KafkaPartition] | None = None
        """The partitions of this member that were logged last; None before it has joined."""
        self._identities = TopicIdentities(list(topics))
        self._options = {
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            # Records of another producer's aborted transaction are never read.
            "isolation_level": "read_committed",
            "session_timeout_ms": int(session_timeout * 1000),
            "heartbeat_interval_ms": int(heartbeat_interval * 1000),
            "max_poll_interval_ms": int(max_poll_interval * 1000),
            "request_timeout_ms": int(request_timeout * 1000),
            "metadata_max_age_ms": int(metadata_max_age * 1000),
            # Limit of a fetch: the client's default of 50 MB would be kept in memory next to a
            # batch.
            "fetch_max_bytes": 16 * 1024 * 1024,
            # The largest value of Kafka. The client's default of 100 MB would close the connection
            # before a larger record, again and again, and polls would return nothing.
            "receive_message_max_bytes": 2**31 - 1,
            "partition_assignment_strategy": ASSIGNORS,
            "metrics_enabled": False,
            **({} if instance_id is None else {"group_instance_id": instance_id}),
        }
        self._pauses = Pauses()
        self._member = Membership(
            connection,
            topics=topics,
            options=self._options,
            join_timeout=join_timeout,
            replaces_dead=replaces_dead,
        )

    def poll(
        self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES
    ) -> Sequence[ReceivedRecord]:
        """Return up to `limit` records, in order per partition, waiting up to `timeout` seconds.

        The record that brings their sizes to `limit_bytes` is the last one, however large it is.
        Raises BrokerUnavailable, TopicMissing, and BrokerError for an error that waiting does not
        fix. Connecting or joining the group takes some additional seconds.
        """
        self._member.check_joining()
        consumer = self._member.open()
        with self._member.client_errors("reading"):
            self._identities.refresh(self._member.network.cluster)
            self._pauses.renew(consumer)
            consumer.take_at_most(limit_bytes)
            fetched = self._fetch(consumer, timeout, limit)
            self._log_assignment(consumer)
            records = self._kept(consumer, fetched)
        if not records:
            self._member.check_reachable()
            return []
        self._member.reached()
        return records

    def _kept(self, consumer: Any, fetched: dict[Any, list[Any]]) -> list[ReceivedRecord]:
        """Return the fetched records that belong to this member; any error rewinds all of them."""
        try:
            kept = self._pauses.without_paused(consumer, self._without_misread(consumer, fetched))
            return [_received(record) for records in kept.values() for record in records]
        except BaseException:
            # The client's position is after these records: the next commit would skip them.
            for place, records in fetched.items():
                with suppress(ValueError):  # no longer assigned
                    consumer.seek(place, records[0].offset)
            raise

    def _fetch(self, consumer: Any, timeout: float, limit: int) -> dict[Any, list[Any]]:
        """Poll the client, repeatedly while it is joining the group.

        The client forgets an assignment that arrives between two polls and joins again, which
        disturbs the whole group (kafka-python 3.0.12). So short polls alone might never join.
        """
        patience = time.monotonic() + _JOIN_S
        fetched: dict[Any, list[Any]] = consumer.poll(
            timeout_ms=max(_LEAST_MS, int(timeout * 1000)), max_records=limit
        )
        while not fetched and not self._member.has_joined() and time.monotonic() < patience:
            self._member.remove_dead()
            fetched = consumer.poll(timeout_ms=_JOIN_LOOK_MS, max_records=limit)
        return fetched

    def _log_assignment(self, consumer: Any) -> None:
        """Log the partitions of this member when they have changed."""
        assigned = frozenset(consumer.assignment() or ())
        if assigned == self._assigned or not self._member.has_joined():
            return
        self._assigned = assigned
        log.info(
            "partitions are assigned",
            extra={
                "action": "partitions_assigned",
                "group": self._group,
                "topics": sorted({place.topic for place in assigned}),
                "partitions": sorted(f"{place.topic}[{place.partition}]" for place in assigned),
                "count": len(assigned),
            },
        )

    def _without_misread(self, consumer: Any, fetched: dict[Any, Any]) -> dict[Any, Any]:
        """Leave out the records of recreated topics, and read these topics from their beginning."""
        recreated_topics = self._identities.recreated(self._member.network.cluster)
        places = [place for place in consumer.assignment() or () if place.topic in recreated_topics]
        if places:
            log.warning(
                "topics were recreated, read from start",
                extra={
                    "action": "topics_recreated",
                    "group": self._group,
                    "topics": sorted(recreated_topics),
                },
            )
            consumer.seek_to_beginning(*places)
        return {
            place: found for place, found in fetched.items() if place.topic not in recreated_topics
        }

    def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Commit these records as done; raises BrokerUnavailable."""
        if self._member.consumer is None:
            return
        offsets: dict[KafkaPartition, int] = {}
        for record in records:
            place = KafkaPartition(record.topic, record.partition)
            offsets[place] = max(record.offset + 1, offsets.get(place, 0))
        # The broker accepts offsets of any partition from any member, and would move another's
        # back.
        mine = self._member.consumer.assignment()
        commits = {p: OffsetAndMetadata(o, "", -1) for p, o in offsets.items() if p in mine}
        if not commits:
            return
        with self._member.client_errors("committing offsets"):
            try:
                self._member.consumer.commit(commits, timeout_ms=int(_COMMIT_S * 1000))
            except _TOO_LATE as error:
                log.warning(
                    "offsets came too late",
                    extra={
                        "action": "offsets_too_late",
                        "group": self._group,
                        "error": str(error),
                    },
                )

    def rewind(self, records: Sequence[ReceivedRecord]) -> None:
        """Have these records delivered again, if their partitions still belong to this member."""
        if self._member.consumer is None:
            return
        offsets: dict[KafkaPartition, int] = {}
        for record in records:
            place = KafkaPartition(record.topic, record.partition)
            offsets[place] = min(record.offset, offsets.get(place, record.offset))
        for place, offset in offsets.items():
            with suppress(ValueError):  # not assigned
                self._member.consumer.seek(place, offset)

    def pause(self, places: AbstractSet[TopicPartition]) -> None:
        """Leave these partitions out of the polls, and read all others."""
        self._pauses.pause(places)

    def has_caught_up(self) -> bool:
        """Whether this member has polled all records; raises BrokerUnavailable."""
        consumer = self._member.consumer
        if consumer is None or not self._member.has_joined():
            return False
        mine = list((consumer.assignment() or set()) - self._pauses.paused)
        if not mine:
            return True
        with self._member.client_errors("asking where the partitions end"):
            ends = consumer.end_offsets(mine)
            # Rejoining meanwhile revokes partitions.
            return all(
                self._member.has_joined()
                and (position := consumer.position(place)) is not None
                and position >= end
                for place, end in ends.items()
            )

    def close(self) -> None:
        """Leave the group, so that others take over at once."""
        self._member.drop()


def _received(record: Any) -> ReceivedRecord:
    return ReceivedRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
        timestamp=record.timestamp,
    )
