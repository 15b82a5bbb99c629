"""The demo: real baskets through two services, with a relay and a consumer killed half-way.

`python -m examples.retail [--baskets N]` needs nothing but Python and Java: it starts PostgreSQL
and Apache Kafka itself, and takes every process with it when it ends, however it ends. What a run
with `--keep` leaves is audited once more by `--again`, whatever was done to it meanwhile.
"""

from __future__ import annotations

import argparse
import signal
import sys
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from rich.console import Console
from rich.markup import escape

from examples.retail import report, scenario
from examples.retail.audit import Audit, judge, read_books
from examples.retail.display import Display
from examples.retail.fleet import Fleet
from examples.retail.progress import watching
from examples.retail.stage import PROJECT, SERVICES, Stage, opened
from examples.retail.topics import read_whole
from shieldtx import ShieldTxError, TxKind
from shieldtx.embedded.jars import fetch_jdbc_driver, fetch_kafka
from shieldtx.embedded.requirements import require_java
from shieldtx.reconcile.findings import Outcome
from shieldtx.reconcile.launch import (
    ExpectedGroup,
    ReconcileRequest,
    ReconcileResult,
    ServiceDatabase,
    run,
)

EXIT_WELL: Final = 0
EXIT_WRONG: Final = 1
"""Something was lost, doubled or reordered, or the books do not agree."""
EXIT_BROKEN: Final = 2
"""The demo could not run to its end."""


def main() -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.retail", description=__doc__)
    parser.add_argument("--baskets", type=_positive, default=5000, metavar="N")
    parser.add_argument("--keep", action="store_true", help="leave the databases and the topics")
    parser.add_argument("--again", action="store_true", help="audit what --keep has left")
    parser.add_argument("--folder", type=Path, default=PROJECT / "build" / "demo")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.again and not (folder / "postgres").is_dir():
        parser.error(f"{folder} holds nothing that a run with --keep has left")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    console = Console()
    try:
        baskets = 0 if options.again else options.baskets
        return demonstrate(console, baskets, folder, keep=options.keep or options.again)
    except ShieldTxError as error:
        said = f"[bold red]the demo broke off:[/] {escape(str(error))}"
        console.print(said, soft_wrap=True, highlight=False)
        return EXIT_BROKEN


def demonstrate(console: Console, baskets: int, folder: Path, *, keep: bool) -> int:
    """Play the scenario, audit it and reconcile it; return the exit status.

    Without baskets nothing is played: what was kept in the folder is audited and reconciled.
    """
    require_java()
    fetch_kafka(progress=console.print)
    driver = fetch_jdbc_driver(progress=console.print)
    display = Display(console, baskets=baskets)
    with opened(folder, keep=keep, anew=baskets > 0) as stage:
        if baskets:
            play(stage, display, baskets)
        else:
            stage.kafka_started.result()
        audit = audit_all(stage)
        report.print_audit(console, audit)
        display.say("reconciling both databases on Spark")
        reconciliation = reconcile(stage, driver)
        report.print_reconciliation(console, reconciliation)
    report.print_paths(console, {"logs of all processes": folder / "logs"})
    if keep:
        # EmbeddedPostgres and EmbeddedKafka start on these folders again.
        kept = {"databases": folder / "postgres", "topics": folder / "kafka"}
        report.print_paths(console, kept)
    wrong = audit.failures
    if reconciliation.outcome is not Outcome.CLEAN:
        wrong.append(f"the reconciliation ended with {reconciliation.outcome.name}")
    for problem in wrong:
        console.print(f"[bold red]WRONG:[/] {problem}")
    if not wrong:
        console.print(
            f"[bold green]Nothing lost, nothing doubled, nothing out of order[/] "
            f"in {display.seconds:.0f} s."
        )
    return EXIT_WRONG if wrong else EXIT_WELL


def play(stage: Stage, display: Display, baskets: int) -> None:
    """Let the baskets through; no process outlives that."""
    display.say(f"PostgreSQL is up; {baskets:,} baskets will go through the tills")
    fleet = Fleet(stage, display.say)
    try:
        with display:
            scenario.play(stage, fleet, display, baskets)
    finally:
        fleet.kill_all()


def audit_all(stage: Stage) -> Audit:
    """Count in the topics and in both databases."""
    topics = (scenario.COMMIT_TOPIC, scenario.ROLLBACK_TOPIC)
    records = [r for topic in topics for r in read_whole(stage.kafka.bootstrap, topic)]
    with watching(stage.url("orders"), stage.url("stock")) as watch:
        return judge(read_books(watch.orders, watch.stock, records))


def reconcile(stage: Stage, driver: Path) -> ReconcileResult:
    """Compare the outboxes and inboxes of both services on Spark."""
    orders, stock = (ServiceDatabase(name=name, url=stage.url(name)) for name in SERVICES)
    return run(
        ReconcileRequest(
            upstream=orders,
            downstream=stock,
            folder=stage.folder / "reconciliation",
            groups=(
                ExpectedGroup(name="stock"),
                ExpectedGroup(name="orders", kind=TxKind.ROLLBACK),
            ),
            # Everybody has stopped: nothing is in flight.
            margin=timedelta(0),
            jdbc_jar=driver,
        )
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one basket")
    return number


def _leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  signal's signature
    """End the demo in order: whoever has started something stops it on the way out."""
    for further in (signal.SIGINT, signal.SIGTERM):
        signal.signal(further, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
