"""The input of the reconciliation's commands: a configuration file, or one application."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from traceback import format_exception
from typing import Annotated

import typer
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from shieldtx.app.application import ShieldTx
from shieldtx.cli.app_loading import Invocation, load
from shieldtx.cli.errors import Failure, failure_of, report
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.reasons import loggable
from shieldtx.errors import ConfigurationError, SchemaMismatch
from shieldtx.reconcile.config import Configuration, read_configuration
from shieldtx.reconcile.expectations import ExpectedGroup, Others
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.request import BrokerAccess, ServiceDatabase
from shieldtx.store.schema import Schema

Config = Annotated[
    Path | None,
    typer.Option(
        envvar="SHIELDTX_RECONCILE_CONFIG",
        help="Configuration file that names the services (default: only the service of --app or "
        "SHIELDTX_APP).",
    ),
]


def name_of(config: Path | None, app: str | None) -> str:
    """Return the source of `load_configuration`: the absolute path of a file, or an application."""
    return f"the application {app}" if config is None else str(config.absolute())


def load_configuration(config: Path | None, invoked: Invocation) -> Configuration:
    """Return the services to compare; raises ConfigurationError, also for --config with --app.

    SHIELDTX_APP is not an error: other commands of the service need it, and --config has priority.
    """
    app = invoked.app
    if config is not None and invoked.is_app_typed:
        raise ConfigurationError(
            f"--app {app} and the file {config} both name what is compared: leave --app out, or "
            "--config, and SHIELDTX_RECONCILE_CONFIG if it is set"
        )
    if config is not None:
        return read_configuration(config, os.environ)
    if app is not None:
        return replace(_of_application(load(app)), options=("--app", app))
    raise ConfigurationError(
        "name the services to compare: --config reconcile.toml, or --app for one that receives its "
        "own events"
    )


def require_tables(services: Iterable[ServiceDatabase]) -> None:
    """Raise ShieldTxError for a database that cannot be reached or whose tables do not fit."""
    for service in services:
        engine = create_engine(service.url, hide_parameters=True)
        try:
            Schema(engine, schema=service.schema).check_tables()
        except SchemaMismatch as error:
            raise SchemaMismatch(f"service {service.name}: {error}") from error
        except SQLAlchemyError as error:
            failure = failure_of(error)
            problem = failure.line if failure else type(error).__name__
            raise ConfigurationError(f"service {service.name}: {problem}") from error
        finally:
            engine.dispose()


@contextmanager
def ending_as_error() -> Iterator[None]:
    """End the command with the outcome ERROR (3): 1 and 2 have another meaning here.

    A defect also has that exit status, with its traceback.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except BrokenPipeError as error:
        # Silent like other commands: the reader of the results has ended.
        raise typer.Exit(RunOutcome.ERROR) from error
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            typer.echo("".join(format_exception(loggable(error))), err=True, nl=False)
            raise typer.Exit(RunOutcome.ERROR) from error
        where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
        report(Failure(line=f"{where}{failure.line}", status=RunOutcome.ERROR))
        raise typer.Exit(RunOutcome.ERROR) from error


def _of_application(app: ShieldTx) -> Configuration:
    settings = app.settings
    password = settings.kafka_sasl_password
    return Configuration(
        scope=settings.source,
        services=(
            ServiceDatabase(
                name=settings.source,
                url=settings.database_url.get_secret_value(),
                schema=settings.database_schema,
                retention=min(settings.retention_outbox, settings.retention_inbox),
                groups=tuple(e for group in app.groups.values() for e in _expected(group)) or None,
                others=_written_for_others(app),
            ),
        ),
        broker=BrokerAccess(
            bootstrap=settings.kafka_bootstrap,
            topic_prefix=settings.topic_prefix,
            security_protocol=settings.kafka_security_protocol,
            sasl_mechanism=settings.kafka_sasl_mechanism,
            sasl_username=settings.kafka_sasl_username,
            sasl_password=None if password is None else password.get_secret_value(),
            ssl_cafile=settings.kafka_ssl_cafile,
        ),
    )


def _written_for_others(app: ShieldTx) -> Others:
    """Return the topics without a group, and the event types of other topics without a handler."""
    groups = app.groups.values()
    read = {topic for group in groups for topic, _ in group.subscriptions()}
    handled = {event_type for group in groups for (event_type, _), _ in group.declared()}
    topics = {declared.topic for declared in app.event_types} - read
    types = {declared.name for declared in app.event_types if declared.topic in read} - handled
    return Others(topics=tuple(sorted(topics)), event_types=tuple(sorted(types)))


def _expected(group: ConsumerGroup) -> list[ExpectedGroup]:
    return [
        ExpectedGroup(
            name=group.name,
            kind=kind,
            topics=(handler.topic,),
            event_types=(event_type,),
            max_attempts=handler.retry.max_attempts,
            # The type is not misspelt: a handler is declared for it.
            may_be_unused=(handler.topic, event_type),
        )
        for (event_type, kind), handler in group.declared()
    ]
