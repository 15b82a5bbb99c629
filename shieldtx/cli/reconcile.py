"""`shieldtx reconcile`: the comparison of services' outboxes, inboxes and topics, on Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import TypeAdapter, ValidationError

from shieldtx.app.reconciliation import request_of, run_reconciliation
from shieldtx.cli.app_loading import invocation
from shieldtx.cli.option_places import refuse_options_before
from shieldtx.cli.output import AsJson, print_json, showing_progress
from shieldtx.cli.prompts import current_operator
from shieldtx.cli.reconcile_config import (
    Config,
    ending_as_error,
    load_configuration,
    require_tables,
)
from shieldtx.cli.reconcile_views import data_of, show
from shieldtx.errors import AlreadyRunning, ConfigurationError, NameTaken
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.report_folder import new_folder
from shieldtx.reconcile.request import EVERYTHING, MOST_ROWS, Selection
from shieldtx.reconcile.spark_launcher import ReconcileRequest
from shieldtx.scheduling.cron import run_by_crontab

log = logging.getLogger(__name__)

_DURATION: Final = TypeAdapter(timedelta)
_MOMENT: Final = TypeAdapter(datetime)

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
            help="Folder for the report, the rows and the log of Spark; an earlier report in it is "
            "replaced.",
        ),
    ] = Path("reconciliation"),
    margin: Annotated[
        str | None,
        typer.Option(help="What moved within it is in flight; seconds or ISO 8601. [PT15M]"),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Look at everything, not only at what has moved since the last good run."
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(help="Only events written since then, as in 2026-01-31T00:00:00+00:00."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only events written before then.")] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="LINE",
            help="Stay, and run at these times, as in '0 2 * * *'; each run has a folder of its "
            "own in that of --out.",
        ),
    ] = None,
    topics: Annotated[
        bool, typer.Option("--topics/--no-topics", help="Read the topics too.")
    ] = True,
    push_down: Annotated[
        bool,
        typer.Option(
            "--push-down/--no-push-down",
            help="Compare digests that the databases make, and read only rows where they differ.",
        ),
    ] = True,
    rows: Annotated[
        int, typer.Option(min=0, max=MOST_ROWS, help="Of each mismatch, on the page.")
    ] = 20,
    show_payloads: Annotated[
        bool, typer.Option("--show-payloads", help="Of those rows; masked otherwise.")
    ] = False,
    master: Annotated[
        str, typer.Option(envvar="SHIELDTX_SPARK_MASTER", help="Where Spark runs.")
    ] = "local[2]",
    jdbc_jar: Annotated[
        Path | None,
        typer.Option(
            envvar="SHIELDTX_JDBC_JAR",
            help="PostgreSQL's JDBC driver; without it, a pinned one is downloaded and verified.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what services sent with what others received, row by row, on Spark.

    Every event with every group that should have it, the rollbacks that come back, and what is in
    the topics. Nothing is changed. The services are those of reconcile.toml; their URLs hold
    passwords, so the file names environment variables.

    The exit status: 0 all is well, 1 there are mismatches, 2 not all could be judged, 3 it broke
    off. By default a run looks at what has moved since the last good one, and at all that still
    waits. It needs pip install 'shieldtx[spark]' and Java 17 or newer.

    Example: `shieldtx reconcile --config reconcile.toml`
    """
    with ending_as_error():
        if context.invoked_subcommand is not None:
            refuse_options_before(context)
            return
        options: dict[str, Any] = {
            "margin": None if margin is None else _duration("--margin", margin),
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
            nightly = partial(_run_at_night, asked, selection, as_json=as_json)
            raise typer.Exit(run_by_crontab(cron, nightly))
        outcome = _run(configuration, request, selection, as_json=as_json)
    raise typer.Exit(outcome)


def _request(
    configuration: Configuration,
    out: Path,
    *,
    topics: bool,
    margin: timedelta | None,
    **options: Any,
) -> ReconcileRequest:
    """Return what a configuration asks for, as far as the options do not say otherwise."""
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
) -> RunOutcome:
    # Of the others, the run says itself what is wrong with them, and stores it.
    require_tables(configuration.services[:1])
    with showing_progress() as progress:
        result = run_reconciliation(
            configuration, request, selection, who=current_operator(), progress=progress
        )
    if as_json:
        print_json(data_of(result))
    else:
        show(result)
    if result.problem:
        typer.echo(f"error: {result.problem}", err=True)
    return result.outcome


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
        outcome = _run(configuration, replace(request, folder=folder), selection, as_json=as_json)
    except NameTaken as error:
        # Nobody has judged what this configuration names.
        log.error(  # noqa: TRY400  where is of no use
            "no reconciliation, its name is taken",
            extra={"action": "reconciliation_refused", "error": str(error)},
        )
    except AlreadyRunning as error:
        log.info(
            "another machine runs the reconciliation",
            extra={"action": "reconciliation_elsewhere", "reason": str(error)},
        )
    else:
        log.info(
            "reconciliation ended",
            extra={
                "action": "reconciliation_ended",
                "outcome": outcome.name,
                "folder": str(folder),
            },
        )
    finally:
        # Of a run that has not begun.
        with suppress(OSError):
            folder.rmdir()


def _selection(*, full: bool, since: str | None, until: str | None) -> Selection | None:
    """Return what to look at; None: what has moved since the last good run."""
    if full and (since or until):
        raise ConfigurationError("--full looks at everything: leave --since and --until out")
    if since is None and until is None:
        return EVERYTHING if full else None
    return Selection(
        written_since=_moment("--since", since), written_until=_moment("--until", until)
    )


def _duration(option: str, text: str) -> timedelta:
    """Read a duration as the settings do: a plain number counts seconds."""
    with suppress(ValueError, OverflowError):
        return timedelta(seconds=float(text))
    with suppress(ValidationError):
        return _DURATION.validate_python(text)
    raise ConfigurationError(
        f"{option}: {text!r} is not a duration; use seconds, or ISO 8601 as in PT15M or P7D"
    )


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return _MOMENT.validate_python(text)
    except ValidationError:
        raise ConfigurationError(
            f"{option}: {text!r} is not a time; write it as 2026-01-31T00:00:00+00:00"
        ) from None
