"""`shieldtx topics`: the topics of a service's declarations."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.output import AsJson, age, print_json, print_table
from shieldtx.ports.broker import TopicCleanup

commands = typer.Typer(
    help="Create and list the topics of the events that the service writes and reads.",
    no_args_is_help=True,
)


Partitions = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10_000,
        help="Partitions of the created topics (default: SHIELDTX_TOPIC_PARTITIONS).",
        show_default=False,
    ),
]
Replication = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100,
        help="Replication of the created topics (default: SHIELDTX_TOPIC_REPLICATION, then the "
        "default of the cluster).",
        show_default=False,
    ),
]


@commands.command()
def create(
    context: typer.Context,
    *,
    partitions: Partitions = None,
    replication: Replication = None,
    as_json: AsJson = False,
) -> None:
    """Create the missing topics; existing topics stay unchanged.

    Each logical topic has two: PREFIX + topic + .commit, and .rollback for rollback events. The
    topics are those of the events that the application declares, and those that its groups read,
    also if another service publishes them: these too get the partitions of this command. Let the
    publishing service create its topics first, if it has other numbers. Foreign topics, which other
    software writes, are not created.

    Example: `shieldtx --app shop.orders:shield topics create --partitions 12`

    Settings: SHIELDTX_KAFKA_BOOTSTRAP, SHIELDTX_TOPIC_PREFIX, SHIELDTX_TOPIC_PARTITIONS,
    SHIELDTX_TOPIC_REPLICATION.
    """
    app = invocation(context).declared()
    settings = app.settings
    admin = app.broker.topics()
    try:
        created = admin.create(
            app.topics(),
            partitions=settings.topic_partitions if partitions is None else partitions,
            replication=settings.topic_replication if replication is None else replication,
        )
    finally:
        admin.close()
    _print(app, created, as_json=as_json)


@commands.command("list")
def list_(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the service's topics, whether they exist, and when the broker deletes their records.

    A compacted topic loses events: workers refuse to start with it.

    Example: `shieldtx --app shop.orders:shield topics list`

    Settings: SHIELDTX_KAFKA_BOOTSTRAP, SHIELDTX_TOPIC_PREFIX.
    """
    _print(invocation(context).declared(), (), as_json=as_json)


def _print(app: ShieldTx, created: Collection[str], *, as_json: bool) -> None:
    names = sorted({*app.topics(), *app.foreign_topics()})
    admin = app.broker.topics()
    try:
        states = admin.describe(names)
        cleanups = admin.cleanups([name for name, state in states.items() if state])
    finally:
        admin.close()
    uses = {name: _uses(app, name) for name in names}
    if as_json:
        print_json(
            [
                {
                    "topic": name,
                    "exists": state is not None,
                    "created": name in created,
                    "partitions": state.partitions if state else None,
                    "replication": state.replication if state else None,
                    "uses": uses[name],
                    "compacted": cleanups[name].is_compacted if name in cleanups else None,
                    "retention_seconds": _seconds(cleanups.get(name)),
                }
                for name, state in states.items()
            ]
        )
        return
    print_table(
        "topics",
        ("topic", "use", "partitions", "replication", "retention", ""),
        [
            (
                name,
                ", ".join(uses[name]),
                state.partitions if state else "-",
                state.replication if state else "-",
                _retention(cleanups.get(name)),
                "created" if name in created else "exists" if state else "missing",
            )
            for name, state in states.items()
        ],
        right=("partitions", "replication"),
    )


def _uses(app: ShieldTx, name: str) -> list[str]:
    """Return what this application does with a topic.

    The rollback topic of an event that nothing compensates here has no use yet.
    """
    groups = sorted(each for each, group in app.groups.items() if group.subscriptions())
    reads = [f"read by {group}" for group in groups if name in app.topics_of(group)]
    return [*(["written"] if name in app.topics_written() else []), *reads]


def _seconds(cleanup: TopicCleanup | None) -> int | None:
    if cleanup is None or cleanup.retention is None:
        return None
    return int(cleanup.retention.total_seconds())


def _retention(cleanup: TopicCleanup | None) -> str:
    if cleanup is None:
        return "-"
    kept = "all records" if cleanup.retention is None else age(cleanup.retention)
    return f"{kept}, COMPACTED" if cleanup.is_compacted else kept
