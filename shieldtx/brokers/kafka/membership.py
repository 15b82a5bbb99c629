"""A Kafka client as a member of a consumer group: joining, outages and replacement."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any, Final

from kafka.errors import FencedInstanceIdError
from kafka.structs import MemberState

from shieldtx.brokers.client_options import Role
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.consumer_patches import Consumer
from shieldtx.brokers.kafka.topic_admin import KafkaTopics
from shieldtx.errors import BrokerError, BrokerUnavailable, TopicMissing

log = logging.getLogger(__name__)

_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 3.0
# The client reconnects by itself: shorter interruptions are not an outage.
_UNREACHABLE_S: Final = 1.0


class Membership:
    """Keeps one client in the group, and replaces a client that cannot continue."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        topics: Sequence[str],
        options: Mapping[str, Any],
        join_timeout: float,
        replaces_dead: bool = True,
    ) -> None:
        """Join with a client of these `options`; `replaces_dead` removes dead members."""
        self._connection = connection
        self._topics = list(topics)
        self._options = options
        self._join_timeout = join_timeout
        self._replaces_dead = replaces_dead
        self._fenced = False
        self._dead: Collection[str] = ()
        """Members whose process has died on this host, to be removed from the group."""
        self.consumer: Any = None
        """The client; None before the first `open`, and after an error."""
        self.network: Any = None
        self._unreachable_since: float | None = None
        self._joining_since: float | None = None

    def has_joined(self) -> bool:
        """Whether the client is in the group and knows its partitions."""
        return bool(self.consumer.group_metadata().state == MemberState.STABLE)

    def reached(self) -> None:
        """Record that a broker has responded."""
        self._unreachable_since = None

    def open(self) -> Any:
        """Return the client, connecting it if needed; raises TopicMissing, BrokerUnavailable.

        Raises BrokerError if another process has joined with its instance id, from then on: both
        would otherwise replace each other again and again.
        """
        if self.consumer is not None and self.consumer.is_fenced:
            self._fenced = True
            self.drop()
        if self._fenced:
            raise BrokerError(
                f"another process has joined the group {self._options['group_id']} as "
                f"{self._options['group_instance_id']!r}: give each process a "
                "SHIELDTX_CONSUMER_INSTANCE_ID of its own, and start this one again"
            )
        if self.consumer is None:
            self._check_topics()
            self.consumer, self.network = self._connection.open(
                Consumer, within=_CONNECT_S, role=Role.CONSUMER, **self._options
            )
            self.consumer.subscribe(self._topics)
            self._await_metadata()
            self._unreachable_since = self._joining_since = None
        return self.consumer

    def _check_topics(self) -> None:
        admin = KafkaTopics(self._connection, timeout=_CONNECT_S)
        try:
            missing = admin.missing(self._topics)
            if self._replaces_dead and not missing:
                # Before this client joins: during a rebalance, the broker does not show enough.
                self._dead = self._found_dead(admin)
        finally:
            admin.close()
        if missing:
            raise TopicMissing(
                f"no topic {', '.join(missing)} at {self._connection.bootstrap_servers}; "
                "create it with `shieldtx topics create`, or by the producer of a foreign topic"
            )

    def _found_dead(self, admin: KafkaTopics) -> Collection[str]:
        try:
            return admin.dead_members(self._options["group_id"])
        except BrokerError as error:
            self._log_dead_kept(error)
            return ()

    def remove_dead(self) -> None:
        """Remove the dead members of this host, once this client is known to the group.

        The group must not become empty: brokers let the first member of an empty group wait (3 s,
        `group.initial.rebalance.delay.ms`). If it fails, the session timeout removes them.
        """
        if not self._dead or not self.consumer.group_metadata().member_id:
            return
        dead, self._dead = self._dead, ()
        admin, group = KafkaTopics(self._connection, timeout=_CONNECT_S), self._options["group_id"]
        try:
            admin.remove_members(group, dead)
        except BrokerError as error:
            self._log_dead_kept(error)
        else:
            log.warning(
                "dead members removed from group",
                extra={"action": "dead_members_removed", "group": group, "count": len(dead)},
            )
        finally:
            admin.close()

    def _log_dead_kept(self, error: BrokerError) -> None:
        log.info(
            "dead members of group unknown",
            extra={
                "action": "dead_members_unknown",
                "group": self._options["group_id"],
                "error": str(error),
            },
        )

    def _await_metadata(self) -> None:
        """Wait until the client knows the topics: before that, it would assign no partitions."""
        cluster = self.network.cluster
        deadline = time.monotonic() + _CONNECT_S
        while any(cluster.partitions_for_topic(topic) is None for topic in self._topics):
            left = deadline - time.monotonic()
            answered = Event()
            cluster.request_update().add_both(lambda _, answered=answered: answered.set())
            if not answered.wait(max(0.0, left)):
                return

    def check_joining(self) -> None:
        """Replace a client that does not get into the group.

        If a poll of the group's leader ends while it assigns added partitions, the leader forgets
        the assignment. It reads on from its old partitions without heartbeats, cannot commit, and
        does not notice (kafka-python 3.0.12).
        """
        now = time.monotonic()
        if self.consumer is None or self.has_joined():
            self._joining_since = None
        elif self._joining_since is None:
            self._joining_since = now
        elif now - self._joining_since > self._join_timeout:
            log.warning(
                "joining the consumer group again",
                extra={
                    "action": "group_join_repeated",
                    "group": self._options["group_id"],
                    "duration_s": round(self._join_timeout),
                },
            )
            self.drop()

    def check_reachable(self) -> None:
        """Raise BrokerUnavailable when no broker has been connected for a while.

        The client itself never reports it: it retries, and its polls return nothing.
        """
        brokers = [broker.node_id for broker in self.network.cluster.brokers()]
        # The client has a separate connection to the group's coordinator.
        nodes = brokers + [f"coordinator-{broker}" for broker in brokers]
        if any(self.network.connected(node) for node in nodes):
            self._unreachable_since = None
            return
        now = time.monotonic()
        if self._unreachable_since is None:
            self._unreachable_since = now
        if now - self._unreachable_since >= _UNREACHABLE_S:
            raise self._connection.unreachable(
                for_seconds=now - self._unreachable_since, reason=self.network.failure
            )

    def drop(self) -> None:
        """Leave the group with this client; the next `open` creates another client."""
        consumer, self.consumer = self.consumer, None
        if consumer is None:
            return
        try:
            consumer.close(autocommit=False, timeout_ms=int(_CLOSE_S * 1000))
        except Exception as error:  # noqa: BLE001  it stops half-way, its thread still runs
            log.warning(
                "Kafka consumer did not close cleanly",
                extra={
                    "action": "kafka_consumer_close_failed",
                    "group": self._options["group_id"],
                    "error": repr(error),
                },
            )
            self.network.close()

    @contextmanager
    def client_errors(self, doing: str) -> Iterator[None]:
        """Translate the client's errors; after any error except an outage, drop the client."""
        try:
            with self._connection.translated(doing):
                yield
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            self._fenced = isinstance(error.__cause__, FencedInstanceIdError)
            self.drop()
            raise
        except Exception as error:
            # Its state is unknown, and uncommitted records are delivered again.
            self.drop()
            raise BrokerError(f"the Kafka client failed while {doing}: {error!r}") from error
