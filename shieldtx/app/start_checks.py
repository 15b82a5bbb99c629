"""What a worker checks before it starts: tables, topics, and the members of its group."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from shieldtx.app.application import ShieldTx
from shieldtx.errors import BrokerError, BrokerUnavailable, ConfigurationError, TopicMissing
from shieldtx.ports.broker import TopicState

log = logging.getLogger(__name__)


def check_tables(app: ShieldTx) -> None:
    """Raise ShieldTxError if the tables of an application do not fit this release."""
    app.schema.check()
    app.schema.check_sequences()


def check_group(app: ShieldTx, group: str, *, may_wait: bool) -> None:
    """Raise TopicMissing or ConfigurationError if a consumer of the group must not start.

    With `may_wait`, an unreachable broker is logged only: the consumer waits for it.
    """
    try:
        require_topics(app, group)
    except BrokerUnavailable as error:
        if not may_wait:
            raise
        log.warning(
            "topics could not be checked",
            extra={"action": "topics_not_checked", "group": group, "error": str(error)},
        )
    reject_foreign_members(app, group)


def require_topics(app: ShieldTx, group: str) -> None:
    """Raise TopicMissing unless all topics of a consumer group exist."""
    names = app.topics_of(group)
    missing = [name for name, state in describe_topics(app, names).items() if state is None]
    if missing:
        raise TopicMissing(
            f"consumer group {group!r} reads topics that do not exist: {', '.join(missing)}; "
            "create them with `shieldtx topics create`"
        )


def reject_foreign_members(app: ShieldTx, group: str) -> None:
    """Raise ConfigurationError if another service reads with the same Kafka group id.

    The broker would divide the partitions, and so the events, between the two services.
    """
    admin = app.broker.topics()
    try:
        found = admin.foreign_members(app.group_id(group))
    except BrokerError as error:
        log.warning(
            "group members could not be checked",
            extra={"action": "group_members_not_checked", "group": group, "error": str(error)},
        )
        return
    finally:
        admin.close()
    if found:
        raise ConfigurationError(
            f"Kafka's consumer group {app.group_id(group)!r} has members of another service "
            f"(client ids {', '.join(sorted(found))}), so that each service gets only a part of "
            "the events: stop them, or set SHIELDTX_KAFKA_GROUP_PREFIX for this service"
        )


def describe_topics(app: ShieldTx, names: list[str]) -> Mapping[str, TopicState | None]:
    """Return the state of topics from the broker; None for a missing topic."""
    admin = app.broker.topics()
    try:
        return admin.describe(names)
    finally:
        admin.close()
