"""The program `shieldtx`: its commands, their common options, and the reports of errors."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from shieldtx.cli import (
    consumers,
    db,
    dead_letters,
    delayed_events,
    dev,
    events,
    half_messages,
    output,
    reconcile,
    reconcile_repair,
    reconcile_runs,
    topics,
    workers,
)
from shieldtx.cli import status as status_command
from shieldtx.cli import trace as trace_command
from shieldtx.cli.app_loading import Invocation
from shieldtx.cli.errors import EXIT_STATUSES, failure_of, report
from shieldtx.cli.help_types import show_useful_types
from shieldtx.cli.logging import LogFormat, LogLevel, log_crashes, set_up
from shieldtx.cli.option_places import is_on_the_command_line
from shieldtx.cli.usage_errors import (
    CommandLineError,
    UsageError,
    status_of_error,
    usage_errors_of,
)
from shieldtx.domain.reasons import loggable
from shieldtx.logs.databases import name_databases
from shieldtx.settings.environment import OTHER_VARIABLES
from shieldtx.settings.problems import PREFIX
from shieldtx.settings.settings import Settings
from shieldtx.settings.shown import default_of, range_of

log = logging.getLogger(__name__)

_ANYWHERE: Final = frozenset({"--app", "--log-level", "--log-format"})
_WORKERS: Final = frozenset({"relay", "consume"})
"""Commands that have no results, or that check standard output themselves."""
_CONNECT_S: Final = "10"


class Program(TyperGroup):
    """The group of all commands: its options may stand anywhere, and its errors are one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        show_useful_types(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the common options to the front, where the group expects them.

        Without arguments, the help is short, and the exit status that of a wrong command line.
        """
        if not args:
            self.epilog = "`shieldtx --help` has the settings and the exit statuses."
        with usage_errors_of(lambda: _command(args)):
            return super().parse_args(ctx, _common_first(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and end with one line for an error that an operator can fix."""
        try:
            with usage_errors_of(lambda: ctx.invoked_subcommand):
                result = super().invoke(ctx)
            output.flush()
        except (typer.Exit, typer.Abort, CommandLineError):
            # A command ends itself with the first two; Typer reports a wrong command line.
            raise
        except Exception as error:
            failure = failure_of(error)
            loggable_error = loggable(error)
            if failure is None and loggable_error is not error:
                raise loggable_error from loggable_error.__cause__
            if failure is None:
                raise
            log.debug(
                "traceback of the failed command",
                exc_info=loggable_error,
                extra={"action": "command_traceback"},
            )
            status = status_of_error(ctx.invoked_subcommand, failure.status)
            report(replace(failure, status=status))
            raise typer.Exit(status) from error
        return result


def _command(args: Sequence[str]) -> str:
    """Return the name of the command, which the values of common options may precede."""
    rest = iter(args)
    for arg in rest:
        if arg in _ANYWHERE:
            next(rest, None)
        elif not arg.startswith("-"):
            return arg
    return ""


def _common_first(args: Sequence[str]) -> list[str]:
    common: list[str] = []
    others: list[str] = []
    rest = iter(args)
    for arg in rest:
        name, has_value, _ = arg.partition("=")
        if arg == "--":
            others += [arg, *rest]
        elif name in _ANYWHERE:
            value = [] if has_value else list(islice(rest, 1))
            if not has_value and not value:
                raise UsageError(f"Option '{name}' requires an argument.")
            common += [arg, *value]
        else:
            others.append(arg)
    return common + others


def _settings_help() -> str:
    """List every setting and other variable, in Markdown."""
    lines = [
        "**Settings**, by environment variables; durations in seconds, or with units (15min):\n"
    ]
    for name, setting in Settings.model_fields.items():
        limits = [text for text in (default_of(setting), range_of(setting)) if text]
        shown = f" ({'; '.join(limits)})" if limits else ""
        lines.append(f"- `{PREFIX}{name.upper()}` {setting.description}{shown}")
    lines.append("\n**Other variables**, of commands and tools:\n")
    lines += [f"- `{name}` {meaning}" for name, meaning in OTHER_VARIABLES.items()]
    lines.append("\n**Exit status**; `shieldtx reconcile` has its own, see its help:\n")
    lines += [f"- `{status}` {meaning}" for status, meaning in EXIT_STATUSES.items()]
    return "\n".join(lines)


program = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    add_completion=False,
    # Plain tracebacks: pretty ones show the values of variables.
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_settings_help(),
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"shieldtx {version('shieldtx')}")
        raise typer.Exit


@program.callback()
def start(
    context: typer.Context,
    app: Annotated[
        str | None,
        typer.Option(
            envvar="SHIELDTX_APP",
            metavar="MODULE:OBJECT",
            help="ShieldTx object in your code, for example shop.orders:shield.",
        ),
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            envvar="SHIELDTX_LOG_LEVEL",
            help="Minimum severity of log entries.",
            case_sensitive=False,
        ),
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            envvar="SHIELDTX_LOG_FORMAT",
            help="Format of the log on standard error.",
            case_sensitive=False,
        ),
    ] = LogFormat.PLAIN,
    *,
    version: Annotated[  # noqa: ARG001  handled by its callback
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Move events from a service's outbox to Kafka, and from there to other services' handlers.

    First run: `shieldtx db upgrade`, `shieldtx topics create`, then `shieldtx relay` and
    `shieldtx consume GROUP`, each as its own process. The options below may stand before or after
    the command.
    """
    set_up(log_level, log_format)
    name_databases()
    output.set_up()
    if context.invoked_subcommand in _WORKERS:
        log_crashes()
    else:
        output.require()
    # An unresponsive host must not block a command for minutes; libpq reads this variable.
    os.environ.setdefault("PGCONNECT_TIMEOUT", _CONNECT_S)
    context.obj = Invocation(app=app, is_app_typed=is_on_the_command_line(context, "app"))


program.add_typer(db.commands, name="db")
program.add_typer(topics.commands, name="topics")
program.add_typer(events.commands, name="events")
program.command()(workers.relay)
program.command()(workers.consume)
program.command()(status_command.status)
program.command()(trace_command.trace)
program.add_typer(consumers.commands, name="consumers")
program.add_typer(dead_letters.commands, name="dead")
program.add_typer(half_messages.commands, name="half")
program.add_typer(delayed_events.commands, name="delayed")
program.command()(dev.dev)
reconcile.commands.command()(reconcile_repair.repair)
reconcile.commands.command()(reconcile_runs.runs)
program.add_typer(reconcile.commands, name="reconcile")
