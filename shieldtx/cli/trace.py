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
from shieldtx.tracing.model import EventTimeline


def trace(
    context: typer.Context,
    event_id: Annotated[
        str | None, typer.Argument(help="Id of any event, also of a rollback event.")
    ] = None,
    *,
    biz_key: Annotated[
        str | None, typer.Option("--biz-key", help="Business key of the events, in place of an id.")
    ] = None,
    event_type: Annotated[
        str | None, typer.Option("--type", help="Event type of the events that --biz-key names.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Key of the events that --biz-key names.")
    ] = None,
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

    Below it are its rollback events and compensations, and the events that its handlers wrote.
    With --biz-key, the command shows each event that has the business key; an event type can have
    one such event. With --config, the command reads the databases of all services of
    reconcile.toml, and names those that it cannot read. Otherwise it reads the database of --app or
    of the settings. It reads no payloads.

    The tables have the status of each event. The times of single attempts are known only where
    SHIELDTX_TRACE was set. The output names what is unknown.

    Example: `shieldtx trace --biz-key 4711 --type orders.placed --config reconcile.toml`

    Settings: SHIELDTX_SOURCE, SHIELDTX_DATABASE_URL, SHIELDTX_DATABASE_SCHEMA, or those that
    reconcile.toml names; SHIELDTX_TRACE, SHIELDTX_TRACE_ROWS, SHIELDTX_RETENTION_TRACE of the
    workers.
    """
    if (event_id is None) == (biz_key is None) or (biz_key is None and (event_type or key)):
        raise ConfigurationError(
            "name an event by its id, or events by --biz-key, with --type and --key if others have "
            "the same business key"
        )
    with _asked_services(context, config) as services:
        if biz_key is None:
            asked = [_id_of(event_id or "")]
            named = f"event {asked[0]}"
        else:
            asked = _events_of(services, biz_key, event_type, key)
            of_type = "event" if event_type is None else f"{event_type} event"
            named = f"{of_type} with business key {biz_key!r}"
            named += "" if key is None else f" and key {key!r}"
        found = _timelines(services, asked, whole=whole)
    if not found:
        names = ", ".join(services.readers)
        raise ConfigurationError(f"there is no {named} in the database of {names}")
    if as_json:
        data = [data_of(each) for each in found]
        print_json((data[0] if biz_key is None else {"events": data}) | _not_asked(services))
        return
    for each in found:
        print_made_table(tree_of(each, asked=asked))
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


def _events_of(
    services: _Services, biz_key: str, event_type: str | None, key: str | None
) -> list[UUID]:
    """Return the events with a business key in any service, in the order of their ids."""
    found = {
        event_id
        for reader in services.readers.values()
        for event_id in reader.events_of(biz_key, event_type=event_type)
        if key is None or key in _keys_of(reader, event_id)
    }
    return sorted(found)


def _keys_of(reader: TraceReader, event_id: UUID) -> set[str | None]:
    facts = reader.facts(event_id)
    rows = [*facts.received, *([] if facts.written is None else [facts.written])]
    return {row.identity.key for row in rows}


def _timelines(
    services: _Services, asked: Sequence[UUID], *, whole: bool
) -> Sequence[EventTimeline]:
    """Return the timelines of events, without those that another timeline contains."""
    readers = services.readers
    firsts = [timeline.first_cause(each, readers) if whole else each for each in asked]
    found = [timeline.trace(each, readers) for each in dict.fromkeys(firsts)]
    known = [each for each in found if each is not None]
    inside = {event_id for each in known for event_id in _caused_by(each)}
    return [each for each in known if each.identity.event_id not in inside]


def _caused_by(cause: EventTimeline) -> Iterator[UUID]:
    for caused in (*cause.caused, *(each for hop in cause.hops for each in hop.caused)):
        yield caused.identity.event_id
        yield from _caused_by(caused)


def _not_asked(services: _Services) -> dict[str, list[str]]:
    return {"not_asked": services.absent}


def _id_of(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is not an event id; they look like 01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de. "
            "For a business key, use --biz-key"
        ) from None
