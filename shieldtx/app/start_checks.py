"""What a worker checks before it starts: tables, topics, and the members of its group."""

from __future__ import annotations

import logging

from shieldtx.app.application import ShieldTx
from shieldtx.errors import BrokerError, BrokerUnavailable, ConfigurationError, TopicMissing

log = logging.getLogger(__name__)


def check_tables(app: ShieldTx) -> None:
    """Raise ShieldTxError if the tables of an application do not fit this release."""
    app.schema.check()
    app.schema.check_sequences()


def check_relay(app: ShieldTx, *, may_wait: bool) -> None:
    """Raise TopicMissing or ConfigurationError if a relay must not start.

    With `may_wait`, an unreachable broker is logged only: the worker waits for it.
    """
    warn_of_unknown_types(app)
    use = f"relay of {app.settings.source} writes"
    _check_topics(app, app.topics_written(), use=use, may_wait=may_wait, group=None)


def check_group(app: ShieldTx, group: str, *, may_wait: bool) -> None:
    """Raise TopicMissing or ConfigurationError if a consumer of the group must not start.

    With `may_wait`, an unreachable broker is logged only: the worker waits for it.
    """
    warn_of_unknown_types(app)
    use = f"consumer group {group!r} reads"
    _check_topics(app, app.topics_of(group), use=use, may_wait=may_wait, group=group)
    _reject_foreign_members(app, group)


def warn_of_unknown_types(app: ShieldTx) -> None:
    """Log the compensations, local rollbacks and upcasters whose event type nothing declares."""
    for function, event_type in app.of_unknown_types():
        log.warning(
            "event type is not declared",
            extra={
                "action": "event_type_not_declared",
                "event_type": event_type,
                "function": function,
            },
        )


def _check_topics(
    app: ShieldTx, names: list[str], *, use: str, may_wait: bool, group: str | None
) -> None:
    try:
        require_topics(app, names, use=use)
    except BrokerUnavailable as error:
        if not may_wait:
            raise
        log.warning(
            "topics could not be checked",
            extra={"action": "topics_not_checked", "group": group, "error": str(error)},
        )


def require_topics(app: ShieldTx, names: list[str], *, use: str) -> None:
    """Raise TopicMissing unless all topics exist, and ConfigurationError for a compacted one.

    `use` names the worker that uses the topics, and how. Foreign topics may be compacted.
    """
    foreign = set(app.foreign_topics())
    admin = app.broker.topics()
    try:
        states = admin.describe(names)
        if missing := {name for name, state in states.items() if state is None}:
            raise TopicMissing(
                f"{use} topics that do not exist: {', '.join(sorted(missing))}; "
                f"{'; '.join(_remedies(missing, foreign))}"
            )
        cleanups = admin.cleanups([name for name in names if name not in foreign])
    finally:
        admin.close()
    if compacted := [name for name, cleanup in cleanups.items() if cleanup.is_compacted]:
        raise ConfigurationError(
            f"{use} compacted topics: {', '.join(compacted)}; their brokers delete an event when "
            "its key has a later one: set cleanup.policy=delete for them"
        )


def _remedies(missing: set[str], foreign: set[str]) -> list[str]:
    remedies = []
    if missing - foreign:
        remedies.append("create them with `shieldtx topics create`")
    if theirs := sorted(missing & foreign):
        remedies.append(
            f"start the producer of {', '.join(theirs)}, which creates its foreign topics, or "
            "correct the name in ForeignTopic"
        )
    return remedies


def _reject_foreign_members(app: ShieldTx, group: str) -> None:
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
