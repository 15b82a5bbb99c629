"""`shieldtx reconcile`: the comparison of two services' outboxes and inboxes, on Spark."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from shieldtx.catalog import checked_name
from shieldtx.cli.failures import failure_of
from shieldtx.cli.output import AsJson, print_fields, print_json, print_table
from shieldtx.errors import ConfigurationError, ShieldTxError
from shieldtx.reconcile.findings import Findings, Outcome
from shieldtx.reconcile.launch import (
    ExpectedGroup,
    ReconcileRequest,
    ReconcileResult,
    ServiceDatabase,
    run,
)
from shieldtx.states import TxKind
from shieldtx.store.schema import schema_name

_FOR_EVER: Final = "for-ever"
_DURATION: Final = TypeAdapter(timedelta)

Schema = Annotated[
    str | None,
    typer.Option(help="Schema of its shieldtx tables; the connection's own if not given."),
]
Kept = Annotated[
    str,
    typer.Option(
        help="For how long it keeps settled rows: the shorter of its SHIELDTX_RETENTION_OUTBOX and "
        f"SHIELDTX_RETENTION_INBOX, in seconds or as ISO 8601; or {_FOR_EVER}."
    ),
]


def reconcile(
    upstream: Annotated[
        str,
        typer.Option(
            envvar="SHIELDTX_RECONCILE_UPSTREAM",
            metavar="NAME=VARIABLE",
            help="The service that writes the events, and the environment variable that holds its "
            "database's URL.",
        ),
    ],
    downstream: Annotated[
        str,
        typer.Option(
            envvar="SHIELDTX_RECONCILE_DOWNSTREAM",
            metavar="NAME=VARIABLE",
            help="The service whose groups receive them, likewise.",
        ),
    ],
    *,
    out: Annotated[
        Path,
        typer.Option(
            envvar="SHIELDTX_RECONCILE_OUT",
            help="Folder for the report, the rows and the log of Spark; an earlier report in it is "
            "replaced.",
        ),
    ] = Path("reconciliation"),
    margin: Annotated[
        str, typer.Option(help="What moved within it is in flight; seconds or ISO 8601.")
    ] = "PT15M",
    upstream_schema: Schema = None,
    downstream_schema: Schema = None,
    upstream_retention: Kept = "P7D",
    downstream_retention: Kept = "P7D",
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:TOPIC,...]",
            help="A group of the downstream that should receive the events (of these logical "
            "topics); without, those that have received any so far. Repeatable.",
        ),
    ] = None,
    compensates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:TOPIC,...]",
            help="A group of the upstream that should compensate rollbacks, likewise.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Of each mismatch, on the page.")] = 20,
    master: Annotated[
        str, typer.Option(envvar="SHIELDTX_SPARK_MASTER", help="Where Spark runs.")
    ] = "local[2]",
    jdbc_jar: Annotated[
        Path | None,
        typer.Option(
            envvar="SHIELDTX_JDBC_JAR",
            help="PostgreSQL's JDBC driver; Spark fetches one if not given.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what one service sent with what another received, row by row, on Spark.

    Events from upstream to downstream, and the rollbacks that come back. Nothing is changed. URLs
    hold passwords, so they are named by their environment variables, never written here.

    The exit status: 0 all is well, 1 there are mismatches, 2 not all could be judged, 3 it broke
    off. It needs pip install 'shieldtx[spark]' and Java 17 or newer.

    Example: `shieldtx reconcile --upstream orders=ORDERS_URL --downstream stock=STOCK_URL`
    """
    try:
        request = ReconcileRequest(
            upstream=_service("--upstream", upstream, upstream_schema, upstream_retention),
            downstream=_service(
                "--downstream", downstream, downstream_schema, downstream_retention
            ),
            folder=out,
            groups=_groups(group or [], compensates or []),
            margin=_duration("--margin", margin),
            first_rows=rows,
            jdbc_jar=jdbc_jar,
            master=master,
        )
        result = run(request)
    except ShieldTxError as error:
        # 1 and 2 already say something else here.
        failure = failure_of(error)
        typer.echo(f"error: {failure.line if failure else error}", err=True)
        raise typer.Exit(Outcome.ERROR) from error
    if as_json:
        print_json(_data(result))
    else:
        _show(result)
    if result.problem:
        typer.echo(f"error: {result.problem}", err=True)
    raise typer.Exit(result.outcome)


def _service(option: str, text: str, schema: str | None, retention: str) -> ServiceDatabase:
    name, _, variable = text.partition("=")
    if not name or not variable.isidentifier():
        # Not repeated: it may be a URL, with its password.
        raise ConfigurationError(
            f"{option}: write it as NAME=VARIABLE, the service's name and the name of the "
            "environment variable that holds its database's URL (never the URL itself)"
        )
    url = os.environ.get(variable)
    if not url:
        raise ConfigurationError(f"{option}: the environment variable {variable} is not set")
    try:
        make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"{option}: {variable} does not hold a database URL") from None
    schema = schema_name(schema, setting=f"{option}-schema")
    kept = None if retention == _FOR_EVER else _duration(f"{option}-retention", retention)
    return ServiceDatabase(name=name, url=url, schema=schema, retention=kept)


def _groups(receive: list[str], compensate: list[str]) -> tuple[ExpectedGroup, ...] | None:
    groups = [
        ExpectedGroup(
            name=checked_name("group", name),
            kind=kind,
            topics=tuple(t for t in topics.split(",") if t),
        )
        for kind, texts in ((TxKind.COMMIT, receive), (TxKind.ROLLBACK, compensate))
        for name, _, topics in (text.partition(":") for text in texts)
    ]
    return tuple(groups) or None


def _duration(option: str, text: str) -> timedelta:
    """Read a duration as the settings do: a plain number counts seconds."""
    with suppress(ValueError, OverflowError):
        return timedelta(seconds=float(text))
    with suppress(ValidationError):
        return _DURATION.validate_python(text)
    raise ConfigurationError(
        f"{option}: {text!r} is no duration; use seconds, or ISO 8601 as in PT15M or P7D"
    )


def _show(result: ReconcileResult) -> None:
    if result.findings is not None:
        _show_findings(result.findings)
    folder = result.folder
    print_fields(
        [
            ("outcome", result.outcome.name),
            *([("report", folder.page), ("rows", folder.rows)] if result.findings else []),
            ("Spark's log", folder.log),
        ]
    )


def _show_findings(findings: Findings) -> None:
    rows = [
        (pair.kind, f"{pair.upstream} -> {pair.downstream}", pair.group, verdict, number)
        for pair, verdicts in findings.by_pair.items()
        for verdict, number in verdicts.items()
    ]
    columns = ("kind", "services", "group", "verdict", "events")
    print_table("reconciliation", columns, rows, right=("events",))
    for bounds in findings.bounds:
        if bounds.window.obstacle:
            print_fields([(f"{bounds.kind} not judged", bounds.window.obstacle)])


def _data(result: ReconcileResult) -> dict[str, Any]:
    findings, folder = result.findings, result.folder
    data: dict[str, Any] = {
        "outcome": result.outcome.name,
        "exit_status": int(result.outcome),
        "problem": result.problem or None,
        "log": str(folder.log),
    }
    if findings is None:
        return data
    return data | {
        "totals": {verdict.value: number for verdict, number in findings.totals.items()},
        "pairs": [
            {
                "kind": pair.kind.value,
                "upstream": pair.upstream,
                "downstream": pair.downstream,
                "group": pair.group,
                "totals": {verdict.value: number for verdict, number in verdicts.items()},
            }
            for pair, verdicts in findings.by_pair.items()
        ],
        "report": str(folder.page),
        "rows": str(folder.rows),
        "summary": str(folder.summary),
        "findings": str(folder.findings),
    }
