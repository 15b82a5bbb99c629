"""The demo: real baskets through two services, with a relay and a consumer killed half-way.

Then the demo tampers with a few events, for the reconciliation to find and to repair.

`python -m examples.retail [--baskets N]` needs only Python and Java: it starts PostgreSQL and
Apache Kafka itself, and stops every process at its end, however it ends. `--again` audits once more
the data that a run with `--keep` left, whatever was changed meanwhile.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from rich.console import Console
from rich.markup import escape

from examples.retail import incident, report, scenario
from examples.retail.audit import judge, read_books
from examples.retail.display import Display
from examples.retail.fleet import Fleet
from examples.retail.progress import watching
from examples.retail.reconciliation import REPORTS, Operator
from examples.retail.stage import PROJECT, Stage, opened
from examples.retail.topics import read_whole
from shieldtx import ShieldTxError
from shieldtx.embedded.jars import fetch_jdbc_driver, fetch_kafka
from shieldtx.embedded.requirements import require_java
from shieldtx.embedded.status_line import status_line

EXIT_WELL: Final = 0
EXIT_WRONG: Final = 1
"""Something was lost, doubled or reordered, or the reconciliation did not find the incident."""
EXIT_BROKEN: Final = 2
"""The demo could not complete."""


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
    """Play the scenario with its incident, audit it and reconcile it; return the exit status.

    Without baskets nothing is played: the data kept in the folder are audited and reconciled.
    """
    require_java()
    with status_line(sys.stdout) as show:
        fetch_kafka(progress=show)
    with status_line(sys.stdout) as show:
        driver = fetch_jdbc_driver(progress=show)
    display = Display(console, baskets=baskets)
    with opened(folder, keep=keep, anew=baskets > 0) as stage:
        fleet = Fleet(stage, display.say)
        operator = Operator(stage, fleet, console, driver)
        try:
            if baskets:
                wrong = perform(stage, fleet, display, operator, baskets)
            else:
                stage.kafka_started.result()
                wrong = audit(stage, console, "What became of the orders")
                wrong += operator.reconcile("again", expected={})
        finally:
            fleet.kill_all()
    paths = {"logs of all processes": folder / "logs"}
    if keep:
        # EmbeddedPostgres and EmbeddedKafka start on these folders again.
        paths |= {"databases": folder / "postgres", "topics": folder / "kafka"}
    report.print_paths(console, paths)
    report.print_reports(console, folder / REPORTS)
    for problem in wrong:
        console.print(f"[bold red]WRONG:[/] {problem}", soft_wrap=True)
    if not wrong:
        console.print(
            f"[bold green]Nothing lost, nothing doubled, nothing out of order[/] "
            f"in {display.seconds:.0f} s."
        )
    return EXIT_WRONG if wrong else EXIT_WELL


def perform(
    stage: Stage, fleet: Fleet, display: Display, operator: Operator, baskets: int
) -> list[str]:
    """Take the baskets through, plant an incident, and have the operator find and repair it.

    Return all other problems as texts.
    """
    console, in_all = display.console, baskets + incident.LATE
    display.say(f"PostgreSQL is up; {baskets:,} baskets will go through the checkouts")
    scenario.open_services(stage, fleet, in_all)
    scenario.play(stage, fleet, display, baskets)
    wrong = audit(stage, console, "What became of the orders")
    incident.plant(stage, fleet, display.say, after=baskets)
    wrong += operator.reconcile("found", expected=incident.PLANTED)
    wrong += operator.repair()
    scenario.catch_up(stage, fleet, display, in_all)
    wrong += audit(stage, console, "What became of all orders, those of the incident too")
    wrong += operator.reconcile("repaired", expected={})
    return wrong + trace_a_refusal(stage, display, operator)


def trace_a_refusal(stage: Stage, display: Display, operator: Operator) -> list[str]:
    """Print the way of one refused order, if there is any; return the problems as texts."""
    with watching(stage.url("orders"), stage.url("stock")) as watch:
        basket = watch.refused_basket()
    if basket is None:
        return []
    display.say(
        f"the way of an order that stock refused, basket {basket}: placed, refused, refunded"
    )
    return operator.trace(basket)


def audit(stage: Stage, console: Console, title: str) -> list[str]:
    """Count in the topics and in both databases; return the problems as texts."""
    topics = (scenario.COMMIT_TOPIC, scenario.ROLLBACK_TOPIC)
    records = [r for topic in topics for r in read_whole(stage.kafka.bootstrap, topic)]
    with watching(stage.url("orders"), stage.url("stock")) as watch:
        counted = judge(read_books(watch.orders, watch.stock, records))
    report.print_audit(console, counted, title)
    return counted.failures


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one basket")
    return number


def _leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  signal's signature
    """End the demo gracefully: each block that has started a process stops it."""
    for further in (signal.SIGINT, signal.SIGTERM):
        signal.signal(further, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
