"""The report for people: one HTML page that loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from string import Template

from shieldtx.reconcile.findings import Bounds, Findings, RunOutcome
from shieldtx.reconcile.report import found, labels
from shieldtx.reconcile.report.daily import daily
from shieldtx.reconcile.report.markup import (
    Markup,
    definitions,
    element,
    foreign,
    items,
    joined,
    table,
    with_code,
)
from shieldtx.reconcile.verdicts import Verdict, Weight

_WEIGHTS: Mapping[RunOutcome, Weight] = {
    RunOutcome.CLEAN: Weight.CLEAN,
    RunOutcome.MISMATCHES: Weight.MISMATCH,
    RunOutcome.NOT_JUDGED: Weight.UNJUDGED,
    RunOutcome.ERROR: Weight.MISMATCH,
}


def page(findings: Findings) -> str:
    """Return the report as one page."""
    template = files("shieldtx.reconcile.report").joinpath("page.html").read_text(encoding="utf-8")
    outcome = findings.outcome
    return Template(template).substitute(
        title=joined(
            f"shieldtx reconciliation, {labels.moment(findings.started_at)}: "
            f"{outcome.name.replace('_', ' ').lower()}"
        ),
        weight=_WEIGHTS[outcome].lower(),
        headline=joined(labels.headline(findings)),
        run=_run(findings),
        tiles=_tiles(findings),
        unjudged=_unjudged(findings),
        repair=_repair(findings),
        verdicts=_verdicts(findings),
        found=found.mismatches(findings),
        days=daily(findings),
        windows=_windows(findings),
        meanings=_meanings(findings),
    )


def _run(findings: Findings) -> Markup:
    return definitions(
        [
            ("Run", foreign(findings.run_id) if findings.run_id else "not stored"),
            ("Started", f"{labels.moment(findings.started_at)}, by this machine's clock"),
            ("Took", labels.duration(findings.seconds)),
            ("Margin", f"{labels.duration(findings.margin)}: what is younger is in flight"),
            ("Looked at", foreign(labels.selected(findings.selection))),
        ],
        class_="facts run",
    )


def _tiles(findings: Findings) -> Markup:
    totals = labels.weighed(findings.totals)
    tiles = (
        element(
            "li",
            element("b", f"{number:,}"),
            labels.WEIGHTS[weight],
            class_=f"{weight.lower()}{'' if number else ' none'}",
        )
        for weight, number in totals.items()
    )
    return element("ul", *tiles, class_="tiles")


def _unjudged(findings: Findings) -> Markup:
    """Say what could not be judged; first of all, since a clean rest says nothing about it."""
    hindered: dict[str, list[str]] = {}
    for bounds in findings.bounds:
        if bounds.window.obstacle:
            hindered.setdefault(bounds.window.obstacle, []).append(labels.direction(bounds))
    hindrances = [
        *(
            joined(element("b", foreign("; ".join(directions))), ": ", foreign(obstacle))
            for obstacle, directions in hindered.items()
        ),
        *(foreign(obstacle) for obstacle in findings.obstacles if obstacle not in hindered),
    ]
    others = [
        *(
            joined(
                element("b", f"{findings.totals[v]:,} {labels.name(v)}"),
                ": ",
                with_code(f"{v.meaning} What to do: {v.advice}"),
            )
            for v in labels.present(findings.totals)
            if v.weight is Weight.UNJUDGED
        ),
        *(joined("Left out: ", foreign(sentence), ".") for sentence in findings.left_out),
    ]
    return element(
        "section",
        element("h2", "What could not be judged", id="unjudged-heading"),
        items(hindrances) if hindrances else None,
        items(others) if others else None,
        None if hindrances or others else element("p", "Nothing: all that was there was judged."),
        id="unjudged",
        class_=f"panel {Weight.UNJUDGED.lower()}" if hindrances else "panel",
        aria_labelledby="unjudged-heading",
    )


def _repair(findings: Findings) -> Markup:
    repairable = [v for v in labels.present(findings.totals) if labels.is_repairable(v)]
    if not repairable:
        return joined()
    command = labels.repair_command(findings)
    help_for = ", ".join(f"{labels.name(v)} ({findings.totals[v]:,})" for v in repairable)
    return element(
        "section",
        element("h2", "What can be repaired", id="repair-heading"),
        element(
            "p",
            with_code(
                f"{help_for}. Read the advice on each below; then, with the same `--config`, and "
                "with `--dry-run` first to see what it would do:"
            ),
        )
        if command
        else element("p", f"{help_for}. This run was not stored: only a stored one is repaired."),
        element("code", foreign(command), class_="command") if command else None,
        id="repair",
        class_="panel mismatch",
        aria_labelledby="repair-heading",
    )


def _verdicts(findings: Findings) -> Markup:
    if not findings.counts:
        return element("p", "There were no events to compare.")
    totals = labels.weighed(findings.totals)
    always = (Weight.MISMATCH, Weight.CLEAN)
    weights = [w for w, number in totals.items() if number or w in always]
    return table(
        ["Events", "Group or topic", *(labels.WEIGHTS[w].capitalize() for w in weights), "All"],
        (
            [
                foreign(labels.direction(pair)),
                foreign(pair.group),
                *(_counts(counts, weight) for weight in weights),
                f"{counts.total():,}",
            ]
            for pair, counts in findings.by_pair.items()
        ),
        caption="An event counts once for each group that receives it, and once for its topic.",
        numbers_from=2 + len(weights),
        class_="stacking",
    )


def _counts(counts: Mapping[Verdict, int], weight: Weight) -> Markup:
    verdicts = [v for v in labels.present(counts) if v.weight is weight]
    if not verdicts:
        return element("span", "0", class_="none")
    return joined(*(_count(verdict, counts[verdict]) for verdict in verdicts))


def _count(verdict: Verdict, rows: int) -> Markup:
    name: str = labels.name(verdict)
    if verdict.is_mismatch:
        name = element("a", name, href=f"#{found.anchor(verdict)}")
    return element(
        "span", element("b", f"{rows:,}"), " ", name, class_=f"count {verdict.weight.lower()}"
    )


def _windows(findings: Findings) -> Markup:
    if not findings.bounds:
        return element("p", "There were none.")
    return joined(
        table(
            ["Events", "Judged from", "Judged until"],
            (
                [foreign(labels.direction(bounds)), *_window(findings, bounds)]
                for bounds in findings.bounds
            ),
            caption="By the databases' clocks. On one side older rows may have been purged; newer "
            "ones are in flight, as a long transaction keeps them too.",
            class_="stacking",
        )
    )


def _window(findings: Findings, bounds: Bounds) -> tuple[str, str]:
    window = bounds.window
    if window.obstacle:
        return "not judged", element("a", "why", href="#unjudged")
    return labels.from_when(window), labels.until_when(window, findings.started_at)


def _meanings(findings: Findings) -> Markup:
    told = (Weight.MISMATCH, Weight.UNJUDGED)
    others = [v for v in labels.present(findings.totals) if v.weight not in told]
    if not others:
        return element("p", "There are none.")
    return element("dl", *_explained(others), class_="meanings")


def _explained(verdicts: Iterable[Verdict]) -> Iterable[Markup]:
    for verdict in verdicts:
        yield element(
            "div",
            element("dt", labels.name(verdict)),
            element(
                "dd", verdict.meaning, element("br"), "What to do: ", with_code(verdict.advice)
            ),
            class_=verdict.weight.lower(),
        )
