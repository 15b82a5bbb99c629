"""`shieldtx events`: the declared events as documents, and the changes between two of them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shieldtx.catalog.asyncapi import asyncapi
from shieldtx.catalog.compatibility import Change, Compatibility, changes
from shieldtx.catalog.json_schema import json_schema
from shieldtx.catalog.reading import read_catalog
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.errors import FAILED
from shieldtx.cli.output import AsJson, print_json, print_line

commands = typer.Typer(
    help="Export the declared events as AsyncAPI or JSON Schema, and compare two exports.",
    no_args_is_help=True,
)


class Format(StrEnum):
    """The format of an export."""

    ASYNCAPI = "asyncapi"
    JSONSCHEMA = "jsonschema"


@commands.command()
def export(
    context: typer.Context,
    *,
    format_: Annotated[
        Format, typer.Option("--format", help="Format of the document.", case_sensitive=False)
    ] = Format.ASYNCAPI,
    release: Annotated[
        str, typer.Option(help="Version of the service, for the AsyncAPI document.")
    ] = "unreleased",
) -> None:
    """Print the events that the service sends and receives as a document in JSON.

    `asyncapi` is AsyncAPI 3.0 with Kafka bindings: topics, headers, groups and payloads.
    `jsonschema` has the schemas of the sent payloads only. The database and the broker are not
    used.

    Example: `shieldtx --app shop.orders:shield events export > events.json`

    Settings: SHIELDTX_SOURCE, SHIELDTX_TOPIC_PREFIX, SHIELDTX_KAFKA_GROUP_PREFIX.
    """
    catalog = invocation(context).declared().catalog()
    if format_ is Format.ASYNCAPI:
        print_json(asyncapi(catalog, release=release))
    else:
        print_json(json_schema(catalog))


@commands.command()
def check(
    context: typer.Context,
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Export of the earlier release.")],
    new: Annotated[
        Path | None,
        typer.Argument(
            metavar="NEW",
            help="Export of the later release. Without it, the declarations of --app are compared.",
            show_default=False,
        ),
    ] = None,
    *,
    compatibility: Annotated[
        Compatibility,
        typer.Option(
            help="Direction in which payloads of one version must fit: `backward` for old events "
            "and new code, `forward` for new events and old code, `full` for both.",
            case_sensitive=False,
        ),
    ] = Compatibility.FULL,
    as_json: AsJson = False,
) -> None:
    """Compare the events of two releases; exit with 1 if code of both cannot run together.

    A change that breaks needs a new `version=` of the event type, with an upcaster.

    Example: `shieldtx --app shop.orders:shield events check events.json`
    """
    after = invocation(context).declared().catalog() if new is None else read_catalog(new)
    found = changes(read_catalog(old), after, compatibility)
    broken = [change for change in found if change.breaks]
    if as_json:
        print_json(
            {
                "compatible": not broken,
                "compatibility": compatibility.value,
                "changes": [
                    {"event": c.entry, "problem": c.problem, "breaks": c.breaks} for c in found
                ],
            }
        )
    else:
        for change in found:
            print_line(_line(change))
        print_line(
            f"{len(broken)} changes break" if broken else f"compatible ({compatibility.value})"
        )
    if broken:
        raise typer.Exit(FAILED)


def _line(change: Change) -> str:
    return f"{'breaks' if change.breaks else 'note':<7} {change.entry}: {change.problem}"
