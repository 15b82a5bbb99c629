"""`python -m benchmarks`: measures all figures, or some, and prints the table of targets."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchmarks.data.fill_outbox import check_likeness
from benchmarks.experiments import (
    backlog,
    consumer,
    consumer_recovery,
    delayed_lateness,
    effect_latency,
    half_messages,
    held_keys,
    hot_key,
    import_time,
    large_events,
    memory,
    metrics_cost,
    open_snapshot,
    publish_latency,
    purge,
    refusals,
    relay,
    relay_recovery,
    waiting_handlers,
    waiting_rows,
    write_side,
)
from benchmarks.harness import peer_env
from benchmarks.harness.child_process import BUILD, ROOT
from benchmarks.harness.context import Bench
from benchmarks.harness.samples import BenchmarkFailed
from benchmarks.harness.servers import Servers
from benchmarks.harness.sizes import FULL, QUICK, Sizes
from benchmarks.output.report import Report

LOG_WIDTH: Final = 160
EXPERIMENTS: Final[dict[str, ModuleType]] = {
    "relay": relay,
    "publish": publish_latency,
    "effect": effect_latency,
    "import": import_time,
    "write_side": write_side,
    "consumer": consumer,
    "refusals": refusals,
    "waiting_handlers": waiting_handlers,
    "snapshot": open_snapshot,
    "backlog": backlog,
    "delayed": waiting_rows,
    "due": delayed_lateness,
    "held_keys": held_keys,
    "half": half_messages,
    "hot_key": hot_key,
    "memory": memory,
    "large_events": large_events,
    "purge": purge,
    "metrics": metrics_cost,
    "consumer_recovery": consumer_recovery,
    "relay_recovery": relay_recovery,
}


def main() -> int:
    """Measure; the exit status is 1 when a benchmark's own result is wrong."""
    arguments = _arguments()
    began = time.monotonic()
    console = Console()
    if not console.is_terminal:
        console = Console(width=LOG_WIDTH)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting PostgreSQL and Kafka", total=len(arguments.only))

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(f"{time.monotonic() - began:5.0f} s  {text}", highlight=False)

        shutil.rmtree(BUILD / "bench-logs", ignore_errors=True)
        say("preparing the peers' environment (the first time: a minute)")
        peer_env.python()
        try:
            report, failures = _measure(
                arguments.only, arguments.subject, _sizes(arguments), progress, say
            )
        except BenchmarkFailed as failure:
            console.print("[red]failed:[/]", Text(str(failure)))
            return 1
    report.write(BUILD)
    plots = [str(peer_env.python()), "-m", "benchmarks.output.plots", str(BUILD)]
    subprocess.run(plots, check=True, cwd=ROOT)  # noqa: S603  a module of this package
    quick = ", quick run" if arguments.quick else ""
    report.show(console, f"shieldtx and its peers{quick}")
    for problem in failures:
        console.print("[red]failed:[/]", Text(problem))
    return 1 if failures else 0


def _measure(
    names: Sequence[str],
    subjects: Collection[str],
    sizes: Sizes,
    progress: Progress,
    say: Callable[[str], None],
) -> tuple[Report, list[str]]:
    """Run experiments one after the other; a failure does not affect the other experiments."""
    failures: list[str] = []
    say("starting PostgreSQL and Kafka")
    with Servers() as servers:
        report = Report(fdatasync_us=servers.fdatasync_us(), postgres=servers.version())
        with servers.place() as place:
            check_likeness(place)
        bench = Bench(servers=servers, sizes=sizes, say=say, subjects=frozenset(subjects))
        for name in names:
            try:
                report.add(EXPERIMENTS[name].run(bench))
            except Exception as failure:  # noqa: BLE001  the other figures are still valid
                failures.append(f"{name}: {_told(failure)}")
            progress.advance(progress.task_ids[0])
    return report, failures


def _told(failure: Exception) -> str:
    if isinstance(failure, BenchmarkFailed):
        return str(failure)
    return "".join(traceback.format_exception(failure))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"an experiment ({', '.join(EXPERIMENTS)}), or a figure; may be repeated",
    )
    parser.add_argument(
        "--subject",
        action="append",
        default=[],
        metavar="NAME",
        help="of the relay and the consumer, by its name in the second table; may be repeated",
    )
    parser.add_argument("--quick", action="store_true", help="smaller counts: about four minutes")
    parser.add_argument("--events", type=int, help="through each relay")
    parser.add_argument("--runs", type=int, help="alternating runs of each subject")
    arguments = parser.parse_args()
    arguments.only = [_experiment(name, parser) for name in arguments.only or EXPERIMENTS]
    return arguments


def _experiment(name: str, parser: argparse.ArgumentParser) -> str:
    for experiment, module in EXPERIMENTS.items():
        if name == experiment or name in module.FIGURES:
            return experiment
    return parser.error(f"there is no experiment and no figure {name!r}")


def _sizes(arguments: argparse.Namespace) -> Sizes:
    sizes = QUICK if arguments.quick else FULL
    if arguments.events is not None:
        sizes = replace(sizes, events=arguments.events)
    if arguments.runs is not None:
        sizes = replace(sizes, rounds=arguments.runs)
    return sizes


if __name__ == "__main__":
    sys.exit(main())
