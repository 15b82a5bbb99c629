"""`shieldtx reconcile`: the comparison of services' outboxes, inboxes and topics, on Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from shieldtx.app.reconciliation import request_of, run_reconciliation
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.durations import duration_of
from shieldtx.cli.errors import Failure, report
from shieldtx.cli.logging import log_crashes
from shieldtx.cli.option_places import refuse_options_before
from shieldtx.cli.output import AsJson, print_json, showing_progress
from shieldtx.cli.prompts import current_operator
from shieldtx.cli.reconcile_config import (
    Config,
    ending_as_error,
    load_configuration,
    require_tables,
)
from shieldtx.cli.reconcile_log import log_end
from shieldtx.cli.reconcile_views import data_of, show
from shieldtx.cli.times import time_of
from shieldtx.errors import AlreadyRunning, ConfigurationError, NameTaken
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.report_folder import new_folder
from shieldtx.reconcile.request import EVERYTHING, MOST_ROWS, Selection
from shieldtx.reconcile.spark_launcher import ReconcileRequest, ReconcileResult
from shieldtx.scheduling.cron import run_by_crontab

log = logging.getLogger(__name__)

commands = typer.Typer()


@commands.callback(invoke_without_command=True)
def reconcile(
    context: typer.Context,
    *,
    config: Config = None,
    out: Annotated[
        Path,
        typer.Option(
            envvar="SHIELDTX_RECONCILE_OUT",
            help="Folder for the report, the rows and Spark's log; replaces an earlier report.",
        ),
    ] = Path("reconciliation"),
    margin: Annotated[
        str | None,
        typer.Option(help="Age below which changes are in flight, as 900 or 15min. [PT15M]"),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Judge all events, not only those changed since the last good run."
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(help="Judge only events written since a time: 2026-01-31T00:00:00+00:00."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Judge only events written before a time.")
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="LINE",
            help="Keep running, and reconcile at the times of this crontab line, as in "
            "'0 2 * * *'; each run has its own folder in --out.",
        ),
    ] = None,
    topics: Annotated[
        bool,
        typer.Option("--topics/--no-topics", help="Read the Kafka topics too, not only tables."),
    ] = True,
    push_down: Annotated[
        bool,
        typer.Option(
            "--push-down/--no-push-down",
            help="Compare digests from the databases, and read rows only where digests differ.",
        ),
    ] = True,
    rows: Annotated[
        int,
        typer.Option(min=0, max=MOST_ROWS, help="Sample rows per mismatch in the report."),
    ] = 20,
    show_payloads: Annotated[
        bool,
        typer.Option(
            "--show-payloads",
            help="Show payloads and keys of sample rows (masked by default).",
        ),
    ] = False,
    master: Annotated[
        str, typer.Option(envvar="SHIELDTX_SPARK_MASTER", help="URL of the Spark master.")
    ] = "local[2]",
    jdbc_jar: Annotated[
        Path | None,
        typer.Option(
            envvar="SHIELDTX_JDBC_JAR",
            help="PostgreSQL's JDBC driver (default: a pinned version, downloaded and verified).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare sent events with received events, row by row, on Spark.

    The comparison covers every event in every group that should have it, the rollback events, and
    the records of the topics. It changes nothing. The services are those of reconcile.toml. Their
    URLs contain passwords, so the file names environment variables. Without --config, the only
    service is that of --app or SHIELDTX_APP, which receives its own events. Each run starts Spark.

    Exit status: 0 no mismatch, 1 mismatches, 2 not everything could be judged, 3 the run failed or
    the command line is invalid. By default, a run judges what has changed since the last good run,
    and everything that still waits. Requirements: pip install 'shieldtx[spark]' and Java 17 or
    newer.

    Example: `shieldtx reconcile --config reconcile.toml`
    """
    with ending_as_error():
        if context.invoked_subcommand is not None:
            refuse_options_before(context)
            return
        options: dict[str, Any] = {
            "margin": None if margin is None else duration_of("--margin", margin),
            "push_down": push_down,
            "first_rows": rows,
            "show_payloads": show_payloads,
            "jdbc_jar": jdbc_jar,
            "master": master,
        }
        selection = _selection(full=full, since=since, until=until)

        def asked() -> tuple[Configuration, ReconcileRequest]:
            configuration = load_configuration(config, invocation(context))
            return configuration, _request(configuration, out, topics=topics, **options)

        configuration, request = asked()
        if cron is not None:
            log_crashes()
            nightly = partial(_run_at_night, asked, selection, as_json=as_json)
            raise typer.Exit(run_by_crontab(cron, nightly, configuration=configuration.scope))
        result = _run(configuration, request, selection, as_json=as_json)
        if result.problem:
            report(Failure(line=result.problem, status=result.outcome))
    raise typer.Exit(result.outcome)


def _request(
    configuration: Configuration,
    out: Path,
    *,
    topics: bool,
    margin: timedelta | None,
    **options: Any,
) -> ReconcileRequest:
    """Return the request of a configuration, with the options' values in place of its own."""
    request = request_of(configuration, out)
    return replace(
        request,
        broker=request.broker if topics else None,
        margin=request.margin if margin is None else margin,
        **options,
    )


def _run(
    configuration: Configuration,
    request: ReconcileRequest,
    selection: Selection | None,
    *,
    as_json: bool,
) -> ReconcileResult:
    with showing_progress() as progress:
        result = run_reconciliation(
            configuration,
            request,
            selection,
            who=current_operator(),
            progress=progress,
            # The run itself reports and stores what is wrong with the other services.
            check=partial(require_tables, configuration.services[:1]),
        )
    if as_json:
        print_json(data_of(result))
    else:
        show(result)
    return result


def _run_at_night(
    asked: Callable[[], tuple[Configuration, ReconcileRequest]],
    selection: Selection | None,
    *,
    as_json: bool,
) -> None:
    # The file may have been corrected since the process was started.
    configuration, request = asked()
    folder = new_folder(request.folder)
    try:
        result = _run(configuration, replace(request, folder=folder), selection, as_json=as_json)
    except NameTaken as error:
        # No other run has judged the services of this configuration.
        log.error(  # noqa: TRY400  where is of no use
            "no reconciliation, its name is taken",
            extra={"action": "reconciliation_refused", "error": str(error)},
        )
    except AlreadyRunning as error:
        log.info(
            "another machine runs the reconciliation",
            extra={"action": "reconciliation_elsewhere", "error": str(error)},
        )
    else:
        log_end(configuration, result)
    finally:
        # Removes the folder of a run that did not begin.
        with suppress(OSError):
            folder.rmdir()


def _selection(*, full: bool, since: str | None, until: str | None) -> Selection | None:
    """Return the events to judge; None: what has changed since the last good run."""
    if full and (since or until):
        raise ConfigurationError("--full judges everything: leave --since and --until out")
    if since is None and until is None:
        return EVERYTHING if full else None
    return Selection(
        written_since=None if since is None else time_of("--since", since),
        written_until=None if until is None else time_of("--until", until),
    )
