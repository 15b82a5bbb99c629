"""How findings are told: the outcome, the page, the table and the files."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from rich.console import Console

from shieldtx.reconcile.findings import (
    Bounds,
    Count,
    Findings,
    FoundRow,
    Outcome,
    OutputFolder,
    Pair,
    from_json,
)
from shieldtx.reconcile.report import page, summary_table, write
from shieldtx.reconcile.rules import Verdict
from shieldtx.reconcile.window import Window
from shieldtx.states import OutboxStatus, TxKind

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
PAIR = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="reserve")
BACK = Pair(kind=TxKind.ROLLBACK, upstream="stock", downstream="orders", group="refund")


def findings(*counts, obstacle="", first_rows=()):
    window = Window(obstacle=obstacle) if obstacle else Window(watermark=NOON)
    return Findings(
        started_at=NOON,
        seconds=4.2,
        margin=timedelta(minutes=15),
        bounds=(Bounds(kind=TxKind.COMMIT, upstream="orders", downstream="stock", window=window),),
        counts=tuple(Count(pair=pair, verdict=v, rows=rows) for pair, v, rows in counts),
        first_rows=tuple(first_rows),
    )


def missing(event_id="0199-a", **changes):
    fields = {
        "pair": PAIR,
        "verdict": Verdict.MISSING_DOWNSTREAM,
        "event_id": event_id,
        "topic": "orders.placed",
        "event_type": "orders.placed",
        "upstream_status": OutboxStatus.PROCESSED,
        "created_at": NOON - timedelta(hours=2),
    }
    return FoundRow(**{**fields, **changes})


class Page(HTMLParser):
    """Checks that every element is closed in order, and collects tables, text and addresses."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.text, self.addresses = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in {"src", "href", "action"}]
        if tag in self.VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [
        ([], Outcome.CLEAN),
        ([(PAIR, Verdict.MATCHED, 9)], Outcome.CLEAN),
        ([(PAIR, Verdict.MATCHED, 9), (PAIR, Verdict.IN_FLIGHT, 2)], Outcome.CLEAN),
        ([(PAIR, Verdict.PARKED, 1)], Outcome.CLEAN),
        ([(PAIR, Verdict.IN_FLIGHT, 2)], Outcome.NOT_JUDGED),
        ([(PAIR, Verdict.IN_FLIGHT, 2), (PAIR, Verdict.TOO_OLD, 2)], Outcome.NOT_JUDGED),
        ([(PAIR, Verdict.IN_FLIGHT, 2), (PAIR, Verdict.STUCK, 1)], Outcome.MISMATCHES),
        ([(PAIR, Verdict.MATCHED, 9), (BACK, Verdict.UNKNOWN_UPSTREAM, 1)], Outcome.MISMATCHES),
    ],
)
def test_the_outcome_follows_from_the_verdicts(counts, outcome):
    assert findings(*counts).outcome is outcome


def test_a_direction_that_could_not_be_judged_is_never_clean():
    assert findings((PAIR, Verdict.MATCHED, 9), obstacle="blind").outcome is Outcome.NOT_JUDGED
    assert findings((PAIR, Verdict.STUCK, 9), obstacle="blind").outcome is Outcome.MISMATCHES


def test_the_exit_statuses_are_those_that_are_promised():
    assert [outcome.value for outcome in Outcome] == [0, 1, 2, 3]


def test_findings_come_out_of_their_file_as_they_went_in(tmp_path):
    folder = OutputFolder(path=tmp_path)
    found = findings(
        (PAIR, Verdict.MISSING_DOWNSTREAM, 2),
        (BACK, Verdict.MATCHED, 5),
        first_rows=[missing()],
    )
    write(found, folder)
    assert from_json(folder.findings.read_bytes()) == found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "summary.json"]


def test_the_page_counts_every_pair_and_verdict():
    shown = Page(
        page(
            findings(
                (PAIR, Verdict.MATCHED, 12_345),
                (PAIR, Verdict.MISSING_DOWNSTREAM, 2),
                (BACK, Verdict.MATCHED, 678),
            )
        )
    )
    verdicts = shown.tables[1]
    assert verdicts == [
        ["Events", "Group", "matched", "missing downstream"],
        ["orders → stock, events", "reserve", "12,345", "2"],
        ["stock → orders, rollbacks", "refund", "678", "0"],
    ]


def test_the_page_explains_the_verdicts_that_it_shows():
    text = Page(page(findings((PAIR, Verdict.STUCK, 1)))).text
    assert Verdict.STUCK.meaning in text
    assert Verdict.STUCK.advice in text
    assert Verdict.PARKED.meaning not in text


def test_the_page_shows_the_first_rows_of_each_mismatch_and_of_how_many():
    found = findings(
        (PAIR, Verdict.MISSING_DOWNSTREAM, 30),
        first_rows=[missing("0199-a"), missing("0199-b")],
    )
    shown = Page(page(found))
    assert "2 of 30" in shown.text
    assert shown.tables[2][1][:7] == [
        *("0199-a", "orders → stock, events", "reserve", "orders.placed", "orders.placed"),
        *("PROCESSED", "no row"),
    ]
    assert "2026-01-15 10:00:00 UTC" in shown.tables[2][1]


def test_the_page_tells_the_bounds_of_the_run():
    assert "the first row to 2026-01-15 12:00:00 UTC" in Page(page(findings())).text
    assert "GRANT something" in Page(page(findings(obstacle="GRANT something"))).text


def test_the_page_of_an_empty_run_says_so():
    assert "There were no events to compare." in Page(page(findings())).text


def test_the_page_loads_nothing_and_runs_nothing():
    text = page(findings((PAIR, Verdict.STUCK, 1), first_rows=[missing()]))
    assert Page(text).addresses == []
    assert not re.search(r"https?:|//|url\(|@import|<script|javascript:", text)


def test_what_others_wrote_cannot_become_markup():
    evil = '<script>alert("1")</script>&'
    pair = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group=evil)
    row = missing(evil, pair=pair, topic=evil, event_type=evil)
    found = findings((pair, Verdict.MISSING_DOWNSTREAM, 1), obstacle=evil, first_rows=[row])
    text = page(found)
    assert "<script" not in text
    assert evil in Page(text).text


def test_the_terminal_shows_counts_and_obstacles():
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(
            summary_table(
                findings(
                    (PAIR, Verdict.MATCHED, 12_345), (BACK, Verdict.STUCK, 2), obstacle="blind"
                )
            )
        )
    lines = capture.get().splitlines()
    assert any("reserve" in x and "MATCHED" in x and "12,345" in x for x in lines)
    assert any("stock → orders, rollbacks" in x and "STUCK" in x and "2" in x for x in lines)
    assert any("could not be judged" in x for x in lines)
    assert any("There are mismatches." in x for x in lines)
