"""`shieldtx trace`: the timeline of one event across services, with all events that it caused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

import typer
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from shieldtx.cli.app_loading import Invocation, invocation
from shieldtx.cli.errors import failure_of
from shieldtx.cli.output import AsJson, print_json, print_line, print_made_table
from shieldtx.cli.reconcile_config import Config
from shieldtx.cli.trace_views import data_of, tree_of
from shieldtx.errors import ConfigurationError, SchemaMismatch
from shieldtx.ports.tracing import TraceReader
from shieldtx.reconcile.config import read_configuration
from shieldtx.reconcile.request import ServiceDatabase
from shieldtx.store.schema import Schema
from shieldtx.store.tables import tables
from shieldtx.store.trace import SqlTraceStore
from shieldtx.tracing import timeline


def trace(
    context: typer.Context,
    event_id: Annotated[str, typer.Argument(help="Id of any event, also of a rollback event.")],
    *,
    config: Config = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Begin with the first event of the chain that caused this event."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the timeline of one event: written, published, received, and its outcome.

    Below it are its rollback events and compensations, and the events that its handlers wrote. With
    --config, the command reads the databases of all services of reconcile.toml, and names those
    that it cannot read. Otherwise it reads the database of --app or of the settings. It reads no
    payloads.

    The tables have the status of each event. The times of single attempts are known only where
    SHIELDTX_TRACE was set. The output names what is unknown.

    Example: `shieldtx trace 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de --config reconcile.toml`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA, or those that
    reconcile.toml names; SHIELDTX_TRACE, SHIELDTX_TRACE_ROWS, SHIELDTX_RETENTION_TRACE of the
    workers.
    """
    asked = _id_of(event_id)
    with _asked_services(context, config) as services:
        first = timeline.first_cause(asked, services.readers) if whole else asked
        found = timeline.trace(first, services.readers)
    if found is None:
        names = ", ".join(services.readers)
        raise ConfigurationError(f"there is no event {asked} in the database of {names}")
    if as_json:
        print_json(data_of(found) | {"not_asked": services.absent})
        return
    print_made_table(tree_of(found, asked=asked))
    for problem in services.absent:
        print_line(f"not asked: {problem}")


@dataclass(kw_only=True, slots=True)
class _Services:
    """The services whose databases are read."""

    readers: dict[str, TraceReader] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    """The services that cannot be read, with the reason."""


@contextmanager
def _asked_services(context: typer.Context, config: Config) -> Iterator[_Services]:
    if config is None:
        yield _of_application(invocation(context))
        return
    configuration = read_configuration(config, os.environ)
    with ExitStack() as closing:
        yield _of_configuration(configuration.services, closing)


def _of_application(given: Invocation) -> _Services:
    app = given.service()
    app.schema.check()
    return _Services(readers={app.settings.source: app.stores.trace()})


def _of_configuration(services: Sequence[ServiceDatabase], closing: ExitStack) -> _Services:
    """Open the available databases: the timeline is useful even if a service is unreachable."""
    found = _Services()
    for service in services:
        engine = create_engine(service.url, hide_parameters=True)
        closing.callback(engine.dispose)
        try:
            Schema(engine, schema=service.schema).check_tables()
        except (SQLAlchemyError, SchemaMismatch) as error:
            failure = failure_of(error)
            problem = failure.line if failure else type(error).__name__
            found.absent.append(f"service {service.name}: {problem}")
        else:
            found.readers[service.name] = SqlTraceStore(engine, tables(service.schema))
    if not found.readers:
        raise ConfigurationError("; ".join(found.absent))
    return found


def _id_of(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not an event id; they look like 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de"
        ) from None
