"""The table for the terminal."""

from __future__ import annotations

from rich.console import Console

from shieldtx.reconcile.report.terminal import remarks, summary_table
from shieldtx.reconcile.verdicts import Verdict
from tests.support.sample_findings import BACK, PAIR, few_findings, findings, hostile, many_findings


def shown(found, *, width=140):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(summary_table(found))
    return capture.get()


def line_with(text, *parts):
    return any(all(part in line for part in parts) for line in text.splitlines())


def test_table_has_the_counts_of_each_pair_by_verdict():
    text = shown(findings((PAIR, Verdict.MATCHED, 12_345), (BACK, Verdict.STUCK, 2)))
    assert line_with(text, "orders → stock, events", "reserve", "0", "12,345 matched")
    assert line_with(text, "stock → orders, rollbacks", "refund", "2 stuck", "0")


def test_table_ends_with_the_outcome_of_the_run():
    assert line_with(
        shown(few_findings()), "32 mismatches in 30 events. Not everything could be judged."
    )


def test_table_comes_with_obstacles_and_the_repair_command():
    minus = "\N{MINUS SIGN}"
    more = "+3 missing downstream, +1 neither effect nor compensation, +1 absent from topic"
    assert remarks(few_findings()) == [
        ("since the last run", f"+5 {minus}1 ({minus}1 stuck, {more})"),
        ("not judged", "the topic orders.cancelled does not exist"),
        ("not judged", "the role may not see running transactions: GRANT pg_monitor"),
        ("left out", "stock has received events of crm, which is none of these services"),
        (
            "repair",
            "shieldtx reconcile repair 20260115-120000-7f3a --config /etc/shieldtx/nightly.toml",
        ),
    ]
    assert remarks(findings()) == []
    assert remarks(findings(rows_without_room=4_711)) == [
        (
            "not shown",
            "the page has no room for 4,711 more requested rows: all rows are in rows/",
        )
    ]


def test_table_comes_with_a_remark_on_the_configuration():
    assert remarks(findings(remarks=("retention is wrong",))) == [
        ("configuration", "retention is wrong")
    ]


def test_empty_columns_are_left_out():
    text = shown(findings((PAIR, Verdict.MATCHED, 1)))
    assert "mismatches" in text
    assert "in order" in text
    assert "notes" not in text
    assert "not judged" not in text


def test_table_of_a_run_without_events_has_a_note():
    assert "there were no events" in shown(findings())


def test_hostile_names_are_shown_without_effect():
    text = shown(hostile(), width=4_000)
    assert "\x1b" not in text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert r"\x1b[31m[red]" in text


def test_nothing_is_cut_off_in_a_narrow_terminal():
    text = shown(many_findings(), width=80)
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
