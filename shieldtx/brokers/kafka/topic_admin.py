"""Topics of a Kafka cluster."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, MemberToRemove, OffsetSpec
from kafka.errors import (
    CoordinatorNotAvailableError,
    InvalidTopicError,
    NoError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from shieldtx.brokers.client_options import Role
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.dead_members import dead_members
from shieldtx.errors import BrokerError
from shieldtx.ports.broker import TopicCleanup, TopicState

log = logging.getLogger(__name__)

_POLICY: Final = "cleanup.policy"
_RETENTION: Final = "retention.ms"
_LONGEST_MS: Final = 10**14
"""More milliseconds than this, 3,000 years, do not fit into a timedelta."""
_NO_ID: Final = str(UUID(int=0))


class KafkaTopics:
    """Creates and describes topics; `timeout` limits connecting and each request, in seconds."""

    def __init__(self, connection: KafkaConnection, *, timeout: float = 5.0) -> None:
        self._connection = connection
        self._timeout = timeout
        self._admin: Any = None

    def create(
        self, names: Sequence[str], *, partitions: int, replication: int | None
    ) -> Sequence[str]:
        """Create the missing topics and return their names once they can be used.

        The replication None is `default.replication.factor` of the brokers (Kafka 2.4, KIP-464).
        Raises BrokerUnavailable, and BrokerError with the name of a topic that the cluster refuses.
        """
        missing = self.missing(names)
        if not missing:
            return []
        wanted = {"num_partitions": partitions, "replication_factor": replication or -1}
        with self._asking("creating topics") as admin:
            answer = admin.create_topics(dict.fromkeys(missing, wanted), raise_errors=False)
            created = []
            for topic in answer["topics"]:
                error = for_code(topic["error_code"])  # type: ignore[no-untyped-call]
                if error is NoError:
                    created.append(topic["name"])
                # Another client may have been faster.
                elif error is not TopicAlreadyExistsError:
                    raise BrokerError(
                        f"topic {topic['name']} cannot be created with {partitions} partitions "
                        f"and {_replicated(replication)}: "
                        f"{topic['error_message'] or error.__name__}"
                    )
            admin.wait_for_topics(missing, timeout_ms=int(self._timeout * 1000))
            return created

    def describe(self, names: Sequence[str]) -> Mapping[str, TopicState | None]:
        """Return the state of each topic, None for a topic that does not exist.

        Raises BrokerUnavailable, and BrokerError with the name of a topic that is not visible.
        """
        if not names:
            return {}
        with self._asking("describing topics") as admin:
            answer = {topic["name"]: topic for topic in admin.describe_topics(list(names))}
            return {name: _state(name, answer[name]) for name in names}

    def cluster_id(self) -> str | None:
        """Return the id of the cluster; None for an old broker. Raises like `describe`."""
        with self._asking("asking for the cluster's id") as admin:
            found = admin.describe_cluster().get("cluster_id")
        return None if found is None else str(found)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the topics that do not exist; raises like `describe`."""
        missing = list(names)
        # Twice: the queried broker may not know a topic that was just created.
        for _ in range(2):
            missing = [name for name, state in self.describe(missing).items() if state is None]
        return missing

    def is_compacted(self, name: str) -> bool:
        """Return whether a key's new records replace its old ones.

        Also False if the account may not see a topic's settings. Raises like `describe`.
        """
        found = self.cleanups([name]).get(name)
        return found is not None and found.is_compacted

    def cleanups(self, names: Sequence[str]) -> Mapping[str, TopicCleanup]:
        """Return when the records of existing topics are deleted.

        Without the topics whose settings the account may not see. Raises like `describe`.
        """
        if not names:
            return {}
        settings = dict.fromkeys((_POLICY, _RETENTION))
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, settings) for name in names]  # type: ignore[no-untyped-call]
        with self._asking("asking for a topic's settings") as admin:
            answer = admin.describe_configs(resources, config_filter="all")
        found = {name: answer.get("topic", {}).get(name, {}) for name in names}
        return {name: _cleanup(of) for name, of in found.items() if _POLICY in of}

    def stable_ends(self, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        """Return up to where consumers can read: the first offset of an open transaction.

        The end of the log where no transaction is open. Raises like `describe`.
        """
        asked = {TopicPartition(topic, partition): OffsetSpec.LATEST for partition in partitions}
        with self._asking("asking where transactions are open") as admin:
            answer = admin.list_partition_offsets(asked, isolation_level="read_committed")
        return {place.partition: found.offset for place, found in answer.items()}

    def foreign_members(self, group_id: str) -> Collection[str]:
        """Return the client ids of a group's members that belong to other services.

        Raises like `describe`. A new cluster has no coordinator yet, and so no groups.
        """
        try:
            with self._asking("asking for a group's members") as admin:
                found = admin.describe_groups([group_id])[group_id]
        except BrokerError as error:
            if not isinstance(error.__cause__, CoordinatorNotAvailableError):
                raise
            log.info(
                "cluster has no group coordinator",
                extra={"action": "group_coordinator_missing", "group": group_id},
            )
            return frozenset()
        return {member["client_id"] for member in found["members"]} - {self._connection.client_id}

    def dead_members(self, group_id: str) -> Collection[str]:
        """Return the ids of a group's members whose process has died on this host.

        Empty while the group rebalances or has no coordinator; else raises like `describe`.
        """
        try:
            with self._asking("asking for a group's members") as admin:
                return dead_members(admin.describe_groups([group_id])[group_id]["members"])
        except BrokerError as error:
            if not isinstance(error.__cause__, CoordinatorNotAvailableError):
                raise
            return ()

    def remove_members(self, group_id: str, members: Collection[str]) -> None:
        """Remove members from a group, where they are not gone yet; raises like `describe`."""
        leaving = [MemberToRemove(member_id=each) for each in members]  # type: ignore[no-untyped-call]
        with self._asking("removing dead members of a group") as admin:
            admin.remove_group_members(group_id, leaving)

    def close(self) -> None:
        """Close the connection."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    @contextmanager
    def _asking(self, doing: str) -> Iterator[Any]:
        if self._admin is None:
            self._admin, _ = self._connection.open(
                KafkaAdminClient,
                within=self._timeout,
                role=Role.ADMIN,
                request_timeout_ms=int(self._timeout * 1000),
            )
        try:
            with self._connection.translated(doing):
                yield self._admin
        except BrokerError:
            self.close()
            raise


def _state(name: str, topic: Mapping[str, Any]) -> TopicState | None:
    error = for_code(topic["error_code"])  # type: ignore[no-untyped-call]
    # An invalid name is reported as a missing topic.
    if error in {UnknownTopicOrPartitionError, InvalidTopicError}:
        return None
    if error is not NoError:
        raise error(name)
    partitions = topic["partitions"]
    return TopicState(
        name=name,
        partitions=len(partitions),
        replication=max((len(p["replica_nodes"]) for p in partitions), default=0),
        topic_id=_topic_id(topic),
    )


def _topic_id(topic: Mapping[str, Any]) -> str | None:
    """Return a topic's id; None for a broker before Kafka 2.8, which has no ids."""
    found = str(topic.get("topic_id") or _NO_ID)
    return None if found == _NO_ID else found


def _cleanup(settings: Mapping[str, Mapping[str, str | None]]) -> TopicCleanup:
    policy = settings[_POLICY].get("value") or ""
    age = int(settings.get(_RETENTION, {}).get("value") or -1)
    deletes = "delete" in policy and age >= 0
    return TopicCleanup(
        is_compacted="compact" in policy,
        retention=timedelta(milliseconds=min(age, _LONGEST_MS)) if deletes else None,
    )


def _replicated(replication: int | None) -> str:
    return "the default replication" if replication is None else f"replication {replication}"
