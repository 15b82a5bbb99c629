"""The findings for people: a table for the terminal, and a page that needs no network."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape
from string import Template

from rich.table import Table
from rich.text import Text

from shieldtx.reconcile.findings import (
    Bounds,
    Findings,
    FoundRow,
    Outcome,
    OutputFolder,
    Pair,
    to_json,
)
from shieldtx.reconcile.rules import Verdict, Weight
from shieldtx.states import TxKind

_SENTENCES = {
    Outcome.CLEAN: "Clean: everything that could be judged is in order.",
    Outcome.MISMATCHES: "There are mismatches.",
    Outcome.NOT_JUDGED: "Not everything could be judged, and what could be is in order.",
    Outcome.ERROR: "The run broke off.",
}
_COLOURS = {
    Weight.CLEAN: "green",
    Weight.UNJUDGED: "dim",
    Weight.PARKED: "yellow",
    Weight.MISMATCH: "bold red",
}


def write(findings: Findings, folder: OutputFolder) -> None:
    """Write the page, and then the findings themselves: their file says that the run ended well."""
    folder.page.write_text(page(findings), encoding="utf-8")
    unfinished = folder.findings.with_suffix(".part")
    unfinished.write_bytes(to_json(findings))
    unfinished.rename(folder.findings)


def summary_table(findings: Findings) -> Table:
    """Return the number of events by pair and verdict, for a terminal."""
    table = Table(
        title="Reconciliation", caption=_SENTENCES[findings.outcome], title_justify="left"
    )
    table.add_column("events")
    table.add_column("group")
    table.add_column("verdict")
    table.add_column("rows", justify="right")
    for pair, counts in findings.by_pair.items():
        for verdict in _present(counts):
            colour = _COLOURS[verdict.weight]
            table.add_row(
                _direction(pair),
                pair.group,
                Text(verdict, style=colour),
                Text(f"{counts[verdict]:,}", style=colour),
            )
    for bounds in findings.bounds:
        if bounds.window.obstacle:
            table.add_row(_direction(bounds), "", Text("could not be judged", style="yellow"), "")
    return table


def page(findings: Findings) -> str:
    """Return the report as one HTML page that loads nothing from elsewhere."""
    return _PAGE.substitute(
        style=_STYLE,
        outcome=findings.outcome.name.lower(),
        sentence=escape(_SENTENCES[findings.outcome]),
        started=_time(findings.started_at),
        seconds=f"{findings.seconds:.1f}",
        margin=escape(str(findings.margin)),
        bounds=_rows(_bounds_row(bounds) for bounds in findings.bounds),
        verdicts=_verdict_table(findings),
        meanings=_meanings(findings),
        mismatches=_mismatches(findings),
    )


def _verdict_table(findings: Findings) -> str:
    verdicts = _present(findings.totals)
    if not verdicts:
        return "<p>There were no events to compare.</p>"
    heads = [
        "<th scope=col>Events</th><th scope=col>Group</th>",
        *(f'<th scope=col class="n">{_badge(verdict)}</th>' for verdict in verdicts),
    ]
    rows = [
        f"<th scope=row>{escape(_direction(pair))}</th><td>{escape(pair.group)}</td>"
        + "".join(_number(counts[verdict], verdict) for verdict in verdicts)
        for pair, counts in findings.by_pair.items()
    ]
    return (
        "<table><caption>Events by pair and verdict</caption>"
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{_rows(rows)}</tbody></table>"
    )


def _number(rows: int, verdict: Verdict) -> str:
    css = f"n {verdict.weight.lower()}" if rows else "n zero"
    return f'<td class="{css}">{rows:,}</td>'


def _meanings(findings: Findings) -> str:
    return "".join(
        f"<dt>{_badge(verdict)}</dt><dd>{escape(verdict.meaning)} "
        f"<span class=advice>What to do: {escape(verdict.advice)}</span></dd>"
        for verdict in _present(findings.totals)
    )


def _mismatches(findings: Findings) -> str:
    found = [verdict for verdict in _present(findings.totals) if verdict.is_mismatch]
    if not found:
        return "<p>None.</p>"
    return "".join(_mismatch_table(verdict, findings) for verdict in found)


def _mismatch_table(verdict: Verdict, findings: Findings) -> str:
    shown = [row for row in findings.first_rows if row.verdict is verdict]
    heads = (
        *("Event", "Events", "Group", "Topic", "Type"),
        *("Upstream", "Downstream", "Written", "Received", "Caused by"),
    )
    shares = f"{len(shown):,} of {findings.totals[verdict]:,}"
    return (
        f"<table><caption>{_badge(verdict)} {shares}</caption>"
        f"<thead><tr>{''.join(f'<th scope=col>{head}</th>' for head in heads)}</tr></thead>"
        f"<tbody>{_rows(_found_row(row) for row in shown)}</tbody></table>"
    )


def _found_row(row: FoundRow) -> str:
    cells = (
        *(_direction(row.pair), row.pair.group, row.topic, row.event_type),
        *(row.upstream_status or "no row", row.downstream_status or "no row"),
        *(_time(row.created_at), _time(row.received_at), row.causation_id or ""),
    )
    return f"<th scope=row><code>{escape(row.event_id)}</code></th>" + "".join(
        f"<td>{escape(cell)}</td>" for cell in cells
    )


def _bounds_row(bounds: Bounds) -> str:
    window = bounds.window
    judged = (
        escape(window.obstacle)
        if window.obstacle
        else f"{_time(window.horizon) or 'the first row'} to {_time(window.watermark)}"
    )
    return f"<th scope=row>{escape(_direction(bounds))}</th><td>{judged}</td>"


def _direction(of: Pair | Bounds) -> str:
    what = "rollbacks" if of.kind is TxKind.ROLLBACK else "events"
    return f"{of.upstream} \N{RIGHTWARDS ARROW} {of.downstream}, {what}"


def _present(counts: dict[Verdict, int]) -> list[Verdict]:
    return [verdict for verdict in Verdict if counts.get(verdict)]


def _badge(verdict: Verdict) -> str:
    name = verdict.replace("_", " ").lower()
    return f'<span class="badge {verdict.weight.lower()}">{name}</span>'


def _rows(cells: Iterable[str]) -> str:
    return "".join(f"<tr>{row}</tr>" for row in cells)


def _time(when: datetime | None) -> str:
    return "" if when is None else f"{when:%Y-%m-%d %H:%M:%S} UTC"


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #c62828; --wait: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff6b6b; --wait: #d4a72c; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.sentence { font-size: 1.15rem; border-left: .35rem solid; padding-left: .8rem; }
.outcome-clean { border-color: var(--good); } .outcome-mismatches { border-color: var(--bad); }
.outcome-not_judged { border-color: var(--wait); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0 1.6rem; font-size: .9rem; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem .3rem 0; text-align: left;
  vertical-align: top; font-weight: normal; }
thead th { font-weight: 600; }
.n { text-align: right; font-variant-numeric: tabular-nums; } .zero { opacity: .4; }
td.mismatch, .badge.mismatch { color: var(--bad); font-weight: 600; }
.badge.clean { color: var(--good); } .badge.parked, td.parked { color: var(--wait); }
code { font-size: .85rem; white-space: nowrap; }
dt { margin-top: .6rem; } dd { margin: 0 0 0 1.2rem; } .advice { opacity: .75; }
"""

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>shieldtx reconciliation, $started</title>
<style>$style</style>
</head>
<body>
<h1>Reconciliation</h1>
<p class="sentence outcome-$outcome">$sentence</p>
<h2>Bounds of the run</h2>
<p>Started $started by this machine's clock, $seconds s of work, margin $margin. Rows that moved
after the end of the window are in flight; the databases' own clocks decide.</p>
<div class="wide"><table>
<thead><tr><th scope="col">Events</th><th scope="col">Judged window</th></tr></thead>
<tbody>$bounds</tbody></table></div>
<h2>Verdicts</h2>
<div class="wide">$verdicts</div>
<dl>$meanings</dl>
<h2>Mismatches</h2>
<div class="wide">$mismatches</div>
<p>All rows that are not clean are in <code>rows/</code>, the counts in <code>summary/</code> (both
Parquet) and in <code>summary.json</code>.</p>
</body>
</html>
""")
