"""The labels and sentences for findings."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from shieldtx.reconcile.repair.decisions import REPAIRED
from shieldtx.reconcile.report import labels
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.verdicts import Verdict, Weight
from shieldtx.reconcile.window import Window
from tests.support.sample_findings import BACK, NOON, PAIR, TOPIC, context, findings


@pytest.mark.parametrize(
    ("found", "headline"),
    [
        (findings(), "Clean: there were no events to compare."),
        (
            findings((PAIR, Verdict.MATCHED, 9)),
            "Clean: everything that could be judged is in order.",
        ),
        (findings((PAIR, Verdict.STUCK, 1)), "1 mismatch."),
        (
            findings((PAIR, Verdict.STUCK, 1_200), (BACK, Verdict.PARKED, 34)),
            "1,234 mismatches.",
        ),
        (
            findings((PAIR, Verdict.STUCK, 3), (TOPIC, Verdict.PARKED, 5), mismatched_events=5),
            "8 mismatches in 5 events.",
        ),
        (
            findings((PAIR, Verdict.STUCK, 1), obstacles=("blind",)),
            "1 mismatch. Not everything could be judged.",
        ),
        (
            findings((PAIR, Verdict.MATCHED, 9), obstacle="blind"),
            "Not everything could be judged. Everything that was judged is in order.",
        ),
        (findings(obstacle="blind"), "Nothing could be judged."),
        (findings((PAIR, Verdict.IN_FLIGHT, 9)), "Nothing could be judged."),
    ],
)
def test_headline_names_the_outcome_of_the_run(found, headline):
    assert labels.headline(found) == headline


def test_directions_name_source_and_destination():
    assert labels.direction(PAIR) == "orders → stock, events"
    assert labels.direction(BACK) == "stock → orders, rollbacks"
    assert labels.direction(TOPIC) == "orders → topics, events"


def test_events_are_added_up_by_weight():
    counts = {Verdict.MATCHED: 5, Verdict.REFUSED: 2, Verdict.STUCK: 1, Verdict.TOO_OLD: 3}
    assert labels.weighed(counts) == {
        Weight.MISMATCH: 1,
        Weight.NOTE: 0,
        Weight.UNJUDGED: 3,
        Weight.CLEAN: 7,
    }


def test_every_weight_has_a_label():
    assert set(labels.WEIGHTS) == set(Weight)


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        (Selection(), "All events that are kept."),
        (
            Selection(written_since=NOON),
            "Only events written since 2026-01-15 12:00:00 UTC.",
        ),
        (
            Selection(written_since=NOON, written_until=NOON + timedelta(hours=1)),
            "Only events written since 2026-01-15 12:00:00 UTC before 2026-01-15 13:00:00 UTC.",
        ),
        (
            Selection(moved_since={"stock": NOON, "orders": NOON}),
            (
                "Events that have moved since the last good run, and events that are open or wait "
                "for an operator: orders since 2026-01-15 12:00:00 UTC; stock since 2026-01-15 "
                "12:00:00 UTC."
            ),
        ),
    ],
)
def test_scope_of_a_run_is_a_sentence(selection, sentence):
    assert labels.selected(selection) == sentence


def test_window_shows_its_bounds_and_its_lag():
    window = Window(watermark=NOON - timedelta(hours=5), horizon=NOON - timedelta(days=7))
    assert labels.from_when(window) == "2026-01-08 12:00:00 UTC"
    assert labels.until_when(window, NOON) == "2026-01-15 07:00:00 UTC (5 h before the run)"
    assert labels.from_when(Window(watermark=NOON)) == "the first row"


def test_clock_that_is_ahead_is_reported():
    window = Window(watermark=NOON + timedelta(minutes=45))
    assert labels.until_when(window, NOON) == (
        "2026-01-15 12:45:00 UTC (45 min after its start, by that clock)"
    )


def test_times_are_shown_in_utc_whatever_their_zone():
    when = datetime(2026, 1, 15, 13, 0, 0, 123_456, tzinfo=timezone(timedelta(hours=1)))
    assert labels.moment(when) == "2026-01-15 12:00:00 UTC"
    assert labels.instant(when) == "2026-01-15 12:00:00.123"
    assert labels.moment(None) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (0.99949, "999 ms"),
        (0.99951, "1 s"),
        (4.2, "4.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (60, "1 min"),
        (75.4, "1 min 15 s"),
        (3_600, "1 h"),
        (5_400, "1 h 30 min"),
        (86_400 + 59, "1 d"),
        (7 * 86_400 + 3_600, "7 d 1 h"),
        (-75, "\N{MINUS SIGN}1 min 15 s"),
        (timedelta(minutes=15), "15 min"),
    ],
)
def test_durations_are_shown_in_their_largest_units(seconds, text):
    assert labels.duration(seconds) == text


def test_repair_is_offered_for_repairable_rows_of_a_kept_run():
    repairable = findings((PAIR, Verdict.MISSING_DOWNSTREAM, 1), run_id="2026-01-15 a")
    assert labels.repair_command(repairable) == "shieldtx reconcile repair '2026-01-15 a'"
    named = findings(
        (PAIR, Verdict.MISSING_DOWNSTREAM, 1), run_id="a", context=context(options=("--app", "a b"))
    )
    assert labels.repair_command(named) == "shieldtx reconcile repair a --app 'a b'"
    assert labels.repair_command(findings((PAIR, Verdict.MISSING_DOWNSTREAM, 1))) is None
    assert labels.repair_command(findings((PAIR, Verdict.PARKED, 1), run_id="a")) is None
    assert labels.repair_command(findings((PAIR, Verdict.MATCHED, 1), run_id="a")) is None


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ({"STUCK": 4, "MATCHED": 9}, "no change"),
        ({}, "+4 (+4 stuck)"),
        ({"STUCK": 5}, "\N{MINUS SIGN}1 (\N{MINUS SIGN}1 stuck)"),
        (
            {"STUCK": 1, "PARKED": 1_001},
            "+3 \N{MINUS SIGN}1,001 (+3 stuck, \N{MINUS SIGN}1,001 parked)",
        ),
        ({"STUCK": 4, "OF_A_LATER_RELEASE": 7}, "no change"),
        (None, None),
    ],
)
def test_change_since_the_run_before_is_by_verdict(before, change):
    earlier = replace(context().earlier, totals=before)
    now = findings((PAIR, Verdict.STUCK, 4), context=context(earlier=earlier))
    assert labels.since_earlier_run(now) == change


def test_first_run_has_no_change():
    assert labels.since_earlier_run(findings()) is None


def test_no_two_verdicts_share_a_name():
    assert len({labels.name(verdict) for verdict in Verdict}) == len(Verdict)


def test_verdicts_with_repair_advice_can_be_repaired():
    repairable = {verdict for verdict in Verdict if labels.is_repairable(verdict)}
    assert repairable == set(REPAIRED)
