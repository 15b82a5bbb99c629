"""`shieldtx topics`: the topics of a service's declarations."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from shieldtx.app.start_checks import describe_topics
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.output import AsJson, print_json, print_table
from shieldtx.ports.broker import TopicState

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
    _print(describe_topics(app, app.topics()), set(), as_json=as_json)


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
