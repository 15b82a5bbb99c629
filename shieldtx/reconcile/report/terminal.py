"""The findings for the terminal: one short table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich import box
from rich.table import Table
from rich.text import Text

from shieldtx.reconcile.findings import Findings, Pair
from shieldtx.reconcile.report import labels
from shieldtx.reconcile.verdicts import Verdict, Weight

_STYLES: Mapping[Weight, str] = {
    Weight.MISMATCH: "bold red",
    Weight.NOTE: "blue",
    Weight.UNJUDGED: "yellow",
    Weight.CLEAN: "green",
}


def summary_table(findings: Findings) -> Table:
    """Return a table with one line for each pair, its numbers by verdict, and the outcome below.

    Foreign names are shown literally: no markup or control character in them has an effect.
    """
    totals = labels.weighed(findings.totals)
    always = (Weight.MISMATCH, Weight.CLEAN)
    weights = [weight for weight, number in totals.items() if number or weight in always]
    table = Table(
        title="reconciliation",
        title_justify="left",
        caption_justify="left",
        caption_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("events", overflow="fold")
    table.add_column("group or topic", overflow="fold")
    for weight in weights:
        table.add_column(labels.WEIGHTS[weight], overflow="fold")
    for pair, counts in findings.by_pair.items():
        table.add_row(*_names(pair), *(_numbers(counts, weight) for weight in weights))
    table.caption = Text(labels.headline(findings), style="bold")
    return table


def remarks(findings: Findings) -> list[tuple[str, str]]:
    """Return labelled lines: the change, problems, remarks, and the command that would repair."""
    command = labels.repair_command(findings)
    since = labels.since_earlier_run(findings)
    return [
        *([("since the last run", since)] if since else []),
        *([("judged events", labels.judged(findings))] if findings.full_because else []),
        *(("not judged", problem) for problem in findings.problems),
        *(("left out", sentence) for sentence in findings.left_out),
        *([("not shown", labels.without_room(findings))] if findings.rows_without_room else []),
        *(("configuration", sentence) for sentence in findings.remarks),
        *([("repair", command)] if command else []),
    ]


def _names(pair: Pair) -> Iterable[Text]:
    yield Text(labels.visible(labels.direction(pair)))
    yield Text(labels.visible(pair.group))


def _numbers(counts: Mapping[Verdict, int], weight: Weight) -> Text:
    found = [
        f"{counts[verdict]:,} {labels.name(verdict)}"
        for verdict in labels.present(counts)
        if verdict.weight is weight
    ]
    return Text("\n".join(found), style=_STYLES[weight]) if found else Text("0", style="dim")
