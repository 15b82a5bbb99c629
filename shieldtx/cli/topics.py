"""`shieldtx topics`: the topics of a service's declarations."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.output import AsJson, print_json, print_table
from shieldtx.errors import BrokerError, ConfigurationError, TopicMissing
from shieldtx.ports.broker import TopicState

log = logging.getLogger(__name__)

commands = typer.Typer(
    help="Create and list the topics of the events that the service writes and reads.",
    no_args_is_help=True,
)


@commands.command()
def create(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Create the missing topics; existing topics stay unchanged.

    Each logical topic has two: PREFIX + topic + .commit, and .rollback for rollback events.

    Example: `shieldtx --app shop.orders:shield topics create`

    Settings: SHIELDTX_KAFKA_BOOTSTRAP, SHIELDTX_TOPIC_PREFIX, SHIELDTX_TOPIC_PARTITIONS,
    SHIELDTX_TOPIC_REPLICATION.
    """
    app = invocation(context).declared()
    admin = app.broker.topics()
    try:
        created = admin.create(
            app.topics(),
            partitions=app.settings.topic_partitions,
            replication=app.settings.topic_replication,
        )
        states = admin.describe(app.topics())
    finally:
        admin.close()
    _print(states, set(created), as_json=as_json)


@commands.command("list")
def list_(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the service's topics, and whether they exist.

    Example: `shieldtx --app shop.orders:shield topics list`

    Settings: SHIELDTX_KAFKA_BOOTSTRAP, SHIELDTX_TOPIC_PREFIX.
    """
    app = invocation(context).declared()
    _print(describe(app, app.topics()), set(), as_json=as_json)


def require(app: ShieldTx, group: str) -> None:
    """Raise TopicMissing unless all topics of a consumer group exist."""
    names = app.topics_of(group)
    missing = [name for name, state in describe(app, names).items() if state is None]
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


def describe(app: ShieldTx, names: list[str]) -> Mapping[str, TopicState | None]:
    """Return the state of topics from the broker; None for a missing topic."""
    admin = app.broker.topics()
    try:
        return admin.describe(names)
    finally:
        admin.close()


def _print(states: Mapping[str, TopicState | None], created: set[str], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "topic": name,
                    "exists": state is not None,
                    "created": name in created,
                    "partitions": state.partitions if state else None,
                    "replication": state.replication if state else None,
                }
                for name, state in states.items()
            ]
        )
        return
    print_table(
        "topics",
        ("topic", "partitions", "replication", ""),
        [
            (
                name,
                state.partitions if state else "-",
                state.replication if state else "-",
                "created" if name in created else "exists" if state else "missing",
            )
            for name, state in states.items()
        ],
        right=("partitions", "replication"),
    )
