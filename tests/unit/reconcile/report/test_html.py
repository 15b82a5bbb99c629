"""What the page says, and that nothing in it can turn against its reader."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib.resources import files

import pytest

from shieldtx.reconcile.report.found import PAYLOAD_LETTERS
from shieldtx.reconcile.report.page import page
from shieldtx.reconcile.verdicts import Verdict
from tests.support.html_reader import Page
from tests.support.sample_findings import (
    BACK,
    HOSTILE_AS_SHOWN,
    NOON,
    PAIR,
    TOPIC,
    a_crowd,
    a_night,
    findings,
    given_up,
    hostile,
    missing,
    nights,
)


def read(found):
    return Page(page(found))


def test_the_page_counts_every_pair_and_verdict():
    shown = read(
        findings(
            (PAIR, Verdict.MATCHED, 12_345),
            (PAIR, Verdict.REFUSED, 4),
            (PAIR, Verdict.MISSING_DOWNSTREAM, 2),
            (BACK, Verdict.MATCHED, 678),
        )
    )
    assert shown.tables[0] == [
        ["Events", "Group or topic", "Mismatches", "In order", "All"],
        [
            *("orders → stock, events", "reserve", "2 missing downstream"),
            *("12,345 matched4 refused", "12,351"),
        ],
        ["stock → orders, rollbacks", "refund", "0", "678 matched", "678"],
    ]


def test_the_page_begins_with_how_the_run_ended():
    text = read(a_night()).text
    assert text.index("31 mismatches. Not everything could be judged.") < text.index("Verdicts")


def test_the_page_tells_which_run_it_is_of():
    text = read(a_night()).text
    for what in ("20260115-120000-7f3a", "2026-01-15 12:00:00 UTC", "48.3 s", "15 min"):
        assert what in text
    assert "All events that are kept." in text
    assert "not stored" in read(findings()).text


@pytest.mark.parametrize("verdict", Verdict)
def test_the_page_explains_the_verdicts_that_it_shows_and_no_others(verdict):
    text = read(findings((PAIR, verdict, 1))).text
    assert verdict.meaning in text
    assert verdict.advice.replace("`", "") in text
    other = Verdict.STUCK if verdict is not Verdict.STUCK else Verdict.PARKED
    assert other.meaning not in text


def test_advice_names_commands_as_code():
    assert "<code>shieldtx dead show</code>" in page(findings((PAIR, Verdict.PARKED, 1)))


def test_what_could_not_be_judged_comes_before_the_verdicts():
    text = read(a_night()).text
    assert "stock → orders, rollbacks: the role may not see running transactions" in text
    assert "the topic orders.cancelled does not exist" in text
    assert "Left out: stock has received events of crm" in text
    assert "212 in flight: " in text
    assert text.index("orders.cancelled") < text.index("Verdicts")


def test_a_run_that_judged_all_says_so():
    assert "Nothing: all that was there was judged." in read(findings()).text


def test_the_page_shows_the_first_rows_of_each_mismatch_and_of_how_many():
    text = read(a_night()).text
    assert "Missing downstream: 30" in text
    assert "The first 4 of 30; all are in rows/." in text
    assert "Neither effect nor compensation: 1" in text
    assert "The first 1 of 1" not in text


def test_a_mismatch_of_which_no_row_is_given_says_where_they_are():
    text = read(findings((PAIR, Verdict.STUCK, 9))).text
    assert "None is shown here; all are in rows/." in text


def test_a_row_tells_all_that_is_known_of_it():
    found = findings((PAIR, given_up().verdict, 1), first_rows=(given_up(causation_id="0198-z"),))
    text = read(found).text
    for what in (
        *("0199-g", "orders.placed", "order.placed", "0198-z", "PROCESSED", "MAX_RECONSUMED"),
        *("Attempts10", "3:1042"),
        *("2026-01-15 10:00:00.000", "2026-01-15 10:00:00.850 +850 ms"),
        *("2026-01-15 10:01:00.000 +59.1 s", "2026-01-15 11:00:00.000 +59 min"),
    ):
        assert what in text


def test_a_row_tells_what_is_not_there():
    text = read(findings((PAIR, missing().verdict, 1), first_rows=(missing(),))).text
    assert "Downstreamno row" in text
    assert "Attempts" not in text
    assert "Received\N{EN DASH}" in text


def test_clocks_that_contradict_each_other_are_shown_as_they_are():
    row = given_up(received_at=NOON - timedelta(hours=2, seconds=5))
    text = read(findings((PAIR, row.verdict, 1), first_rows=(row,))).text
    assert " \N{MINUS SIGN}5.85 s" in text


def test_of_a_topic_there_is_no_downstream_to_tell():
    verdict = Verdict.ABSENT_FROM_TOPIC
    row = missing(pair=TOPIC, verdict=verdict)
    text = read(findings((TOPIC, verdict, 1), first_rows=(row,))).text
    assert "Recordnone" in text
    assert "Received" not in text
    assert "Attempts" not in text


def test_payloads_are_masked_unless_they_are_given():
    masked = read(findings((PAIR, missing().verdict, 1), first_rows=(missing(),))).text
    assert "Payload: masked; --show-payloads shows it" in masked
    row = missing(payload='{"name": "Ann"}')
    shown = read(findings((PAIR, row.verdict, 1), first_rows=(row,))).text
    assert 'Payload{"name": "Ann"}' in shown
    assert "masked" not in shown


def test_a_long_payload_is_cut_and_says_so():
    row = missing(payload="x" * (PAYLOAD_LETTERS + 17))
    text = read(findings((PAIR, row.verdict, 1), first_rows=(row,))).text
    assert "x" * PAYLOAD_LETTERS + "and 17 more characters" in text
    assert "x" * (PAYLOAD_LETTERS + 1) not in text


def test_the_page_tells_the_windows():
    windows = read(a_night()).tables[-1]
    assert windows[1:] == [
        [
            *("orders → stock, events", "2026-01-08 12:00:00 UTC"),
            "2026-01-15 11:45:00 UTC (15 min before the run)",
        ],
        ["stock → orders, rollbacks", "not judged", "why"],
        [
            *("orders → topics, events", "the first row"),
            "2026-01-15 11:45:00 UTC (15 min before the run)",
        ],
    ]


def test_the_command_that_repairs_stands_there_when_something_can_be_repaired():
    assert "shieldtx reconcile repair 20260115-120000-7f3a" in read(a_night()).text
    beyond = read(findings((PAIR, Verdict.PARKED, 1), run_id="a")).text
    assert "What can be repaired" not in beyond
    unstored = read(findings((PAIR, Verdict.MISSING_DOWNSTREAM, 1))).text
    assert "This run was not stored: only a stored one is repaired." in unstored


def test_the_page_of_an_empty_run_says_so():
    text = read(findings()).text
    assert "There were no events to compare." in text
    assert "None." in text


@pytest.mark.parametrize("found", nights().values(), ids=nights())
def test_the_page_loads_nothing_and_runs_nothing(found):
    text = page(found)
    assert all(a.startswith("#") or a == "data:," for a in Page(text).addresses)
    assert not re.search(r"https?:|url\(|@import|<script|<iframe|javascript:|\son\w+=", text)


@pytest.mark.parametrize("found", nights().values(), ids=nights())
def test_links_inside_the_page_lead_somewhere_and_names_are_given_once(found):
    shown = read(found)
    targets = {a.removeprefix("#") for a in shown.addresses if a.startswith("#")}
    assert targets <= set(shown.identities)
    assert len(shown.identities) == len(set(shown.identities))


def test_what_others_wrote_cannot_become_markup():
    text = page(hostile())
    assert "<script" not in text
    assert text.count("</style>") == 1
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
    assert Page(text).text.count(HOSTILE_AS_SHOWN) >= 12


@pytest.mark.parametrize("found", nights().values(), ids=nights())
def test_every_class_is_in_the_style_sheet(found):
    style = files("shieldtx.reconcile.report").joinpath("page.html").read_text(encoding="utf-8")
    known = set(re.findall(r"\.([a-z][\w-]*)", style.split("</style>")[0]))
    assert {c for c in read(found).classes if c not in known} == set()


def test_the_page_of_a_large_run_stays_small():
    assert len(page(a_crowd())) < 2_000_000
