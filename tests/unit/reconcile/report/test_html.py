"""The content of the page, and its safety against hostile text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shieldtx.reconcile.findings import from_json, to_json
from shieldtx.reconcile.report.charts import DAYS_SHOWN
from shieldtx.reconcile.report.html import PAYLOAD_LETTERS, page
from shieldtx.reconcile.verdicts import Verdict
from tests.support.html_reader import Page
from tests.support.sample_findings import (
    BACK,
    HOSTILE,
    HOSTILE_AS_SHOWN,
    NOON,
    PAIR,
    TOPIC,
    all_findings,
    context,
    days,
    few_findings,
    findings,
    given_up,
    hostile,
    many_findings,
    missing,
)

TEMPLATES = files("shieldtx.reconcile.report").joinpath("templates")


class Trusted(str):
    """Text that claims to be markup already."""

    __slots__ = ()

    def __html__(self):
        return self


def read(found):
    return Page(page(found))


def test_page_counts_every_pair_and_verdict():
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


def test_cells_name_their_columns_for_narrow_screens():
    shown = read(few_findings())
    heads = {tuple(table[0][1:]) for table in shown.tables if table[0][0] in {"Events", "Event"}}
    assert {*shown.values("data-head")} == {head for each in heads for head in each} | {"Payload"}
    verdicts, windows = shown.tables[0], shown.tables[-1]
    named = [*(verdicts[0][1:] * (len(verdicts) - 1))]
    assert shown.values("data-head")[: len(named)] == named
    named = [*(windows[0][1:] * (len(windows) - 1))]
    assert shown.values("data-head")[-len(named) :] == named


def test_page_begins_with_the_outcome_of_the_run():
    text = read(few_findings()).text
    assert text.index("32 mismatches in 30 events. Not everything could be judged.") < text.index(
        "Verdicts"
    )


def test_page_names_its_run():
    text = read(few_findings()).text
    for what in ("20260115-120000-7f3a", "2026-01-15 12:00:00 UTC", "48.3 s", "15 min"):
        assert what in text
    assert "All events that are kept." in text
    assert "not stored" in read(findings()).text


@pytest.mark.parametrize("verdict", Verdict)
def test_page_explains_exactly_the_verdicts_that_it_shows(verdict):
    text = read(findings((PAIR, verdict, 1))).text
    assert verdict.meaning in text
    assert verdict.advice.replace("`", "") in text
    other = Verdict.STUCK if verdict is not Verdict.STUCK else Verdict.PARKED
    assert other.meaning not in text


def test_advice_names_commands_as_code():
    assert "<code>shieldtx dead show</code>" in page(findings((PAIR, Verdict.PARKED, 1)))


def test_unjudged_parts_come_before_the_verdicts():
    text = read(few_findings()).text
    assert "stock → orders, rollbacks: the role may not see running transactions" in text
    assert "the topic orders.cancelled does not exist" in text
    assert "Left out: stock has received events of crm" in text
    assert "212 in flight: " in text
    assert text.index("orders.cancelled") < text.index("Verdicts")


def test_configuration_remark_is_shown_if_all_was_judged():
    text = read(findings(remarks=("retention is wrong",))).text
    assert "Configuration: retention is wrong." in text


def test_page_shows_that_a_run_judged_everything():
    assert "Nothing: all events were judged." in read(findings()).text


def test_page_shows_the_first_rows_of_each_mismatch():
    """It shows how many rows there are, too."""
    text = read(few_findings()).text
    assert "Missing downstream: 30" in text
    assert "The first 4 of 30 rows: all rows are in rows/." in text
    assert "Neither effect nor compensation: 1" in text
    assert "The first 1 of 1" not in text


def test_mismatch_without_rows_on_the_page_names_their_folder():
    text = read(findings((PAIR, Verdict.STUCK, 9))).text
    assert "No row is shown here: all rows are in rows/." in text


def test_row_shows_all_known_fields():
    row = given_up(causation_id="0198-z", key="4711", biz_key="order-4711")
    text = read(findings((PAIR, row.verdict, 1), first_rows=(row,))).text
    for what in (
        "orders → stock, events, group reserve, topic orders.placed, type order.placed",
        *("shieldtx trace 0199-g", "caused by 0198-z", "4711, order-4711", "PROCESSED"),
        *("MAX_RECONSUMED 10 attempts", "3:1042"),
        *("2026-01-15 10:00:00.000", "2026-01-15 10:00:00.850 +850 ms"),
        *("2026-01-15 10:01:00.000 +59.1 s", "2026-01-15 11:00:00.000 +59 min"),
    ):
        assert what in text


def test_row_names_its_missing_fields():
    shown = read(findings((PAIR, missing().verdict, 1), first_rows=(missing(),)))
    heads, row = shown.tables[1]
    cells = dict(zip(heads, row, strict=True))
    assert cells["Downstream"] == "no row"
    assert cells["Key, business key"] == cells["Received"] == "\N{EN DASH}"
    assert "attempt" not in "".join(row)
    assert "Record" not in heads


def test_rows_share_a_table_that_names_what_they_share():
    rows = [missing("a"), missing("b", event_type="order.changed"), missing("c")]
    shown = read(findings((PAIR, missing().verdict, 3), first_rows=tuple(rows)))
    _, placed, changed, _ = shown.tables
    assert [row[0] for row in placed[1:]] == ["shieldtx trace a", "shieldtx trace c"]
    assert [row[0] for row in changed[1:]] == ["shieldtx trace b"]
    assert shown.text.count("type order.changed") == 1


def test_row_names_the_other_mismatches_of_its_event():
    others = [Verdict.ABSENT_FROM_TOPIC, Verdict.ORDER_INVERTED, Verdict.STATUS_DISAGREES]
    rows = (missing(), *(missing(pair=TOPIC, verdict=verdict) for verdict in others))
    of_another_source = missing(pair=BACK, verdict=Verdict.PARKED)
    rows = (of_another_source, *rows)
    text = read(findings(*((row.pair, row.verdict, 1) for row in rows), first_rows=rows)).text
    assert "shieldtx trace 0199-a also absent from topic, order inverted and 1 more" in text
    assert "also parked" not in text


def test_command_options_are_shown_with_the_trace_command():
    assert "shieldtx trace shows the timeline of an event: add --config /etc/" in (
        read(few_findings()).text
    )


def test_contradictory_clocks_are_shown_unchanged():
    row = given_up(received_at=NOON - timedelta(hours=2, seconds=5))
    text = read(findings((PAIR, row.verdict, 1), first_rows=(row,))).text
    assert " \N{MINUS SIGN}5.85 s" in text


def test_topic_row_has_no_downstream():
    verdict = Verdict.ABSENT_FROM_TOPIC
    row = missing(pair=TOPIC, verdict=verdict)
    heads, shown = read(findings((TOPIC, verdict, 1), first_rows=(row,))).tables[1]
    cells = dict(zip(heads, shown, strict=True))
    assert cells["Record"] == "none"
    assert not {"Received", "Settled", "Downstream"} & {*heads}


def test_payloads_are_masked_unless_they_are_given():
    masked = read(findings((PAIR, missing().verdict, 1), first_rows=(missing(),))).text
    note = "Payloads are masked, and a key is shown as the start of its SHA-256"
    assert note in masked
    row = missing(payload='{"name": "Ann"}')
    shown = read(findings((PAIR, row.verdict, 1), first_rows=(row,))).text
    assert '{"name": "Ann"}' in shown
    assert "masked" not in shown


def test_long_payload_is_cut_visibly():
    row = missing(payload="x" * (PAYLOAD_LETTERS + 17))
    text = read(findings((PAIR, row.verdict, 1), first_rows=(row,))).text
    assert "x" * PAYLOAD_LETTERS + "and 17 more characters" in text
    assert "x" * (PAYLOAD_LETTERS + 1) not in text


def test_each_pair_has_its_plots_and_their_numbers():
    shown = read(findings(days=(*days(PAIR, 3), *days(BACK, 4, effect_ms=None))))
    of_pair, of_back, _ = shown.tables
    assert [row[:3] for row in of_pair[1:]] == [
        ["2026-01-13", "1,959", "0"],
        ["2026-01-14", "1,411", "0"],
        ["2026-01-15", "2,370", "0"],
    ]
    assert of_pair[1][3] == "13\N{NO-BREAK SPACE}ms, 65\N{NO-BREAK SPACE}ms, 1.1\N{NO-BREAK SPACE}s"
    assert of_back[1][-1] == "\N{EN DASH}"
    plots = [each for each in shown.identities if each.startswith("plot-")]
    assert len(plots) == len(set(plots)) == 2 * (3 + 2)


def test_few_days_are_numbers_without_plots():
    shown = read(findings(days=days(PAIR, 2)))
    assert [row[0] for row in shown.tables[0][1:]] == ["2026-01-14", "2026-01-15"]
    assert not [each for each in shown.identities if each.startswith("plot-")]
    assert "details" not in {element for element, _ in shown.elements}


def test_days_are_sorted():
    shown = read(findings(days=tuple(reversed(days(PAIR, 3)))))
    assert [row[0] for row in shown.tables[0][1:]] == ["2026-01-13", "2026-01-14", "2026-01-15"]


def test_latest_days_are_shown_and_older_mismatches_counted():
    shown = read(many_findings())
    assert len(next(t for t in shown.tables if t[0][0] == "Day (UTC)")) == 1 + DAYS_SHOWN
    earlier = days(PAIR, 400)[:-DAYS_SHOWN]
    wrong = sum(day.mismatches for day in earlier)
    assert f"308 earlier days not shown, with {wrong} mismatches." in shown.text


def test_page_without_days_has_a_note():
    assert "There are no days to show." in read(findings()).text


def test_page_shows_the_windows():
    windows = read(few_findings()).tables[-1]
    assert windows[1:] == [
        [
            *("orders → stock, events", "2026-01-08 12:00:00 UTC"),
            "2026-01-15 11:45:00 UTC (15 min before the run)",
        ],
        ["stock → orders, rollbacks", "not judged", "reason"],
        [
            *("orders → topics, events", "the first row"),
            "2026-01-15 11:45:00 UTC (15 min before the run)",
        ],
    ]


def test_repair_command_is_shown_if_a_repair_is_possible():
    assert "shieldtx reconcile repair 20260115-120000-7f3a" in read(few_findings()).text
    assert "with the options that name the configuration" not in read(few_findings()).text
    beyond = read(findings((PAIR, Verdict.PARKED, 1), run_id="a")).text
    assert "What can be repaired" not in beyond
    unstored = read(findings((PAIR, Verdict.MISSING_DOWNSTREAM, 1))).text
    assert "This run is not stored: only a stored run can be repaired." in unstored


def test_repair_command_is_complete():
    assert (
        "shieldtx reconcile repair 20260115-120000-7f3a --config /etc/shieldtx/nightly.toml"
        in read(few_findings()).text
    )
    without = read(findings((PAIR, Verdict.MISSING_DOWNSTREAM, 1), run_id="a")).text
    assert "Then run this command with the options that name the configuration." in without


def test_repair_comes_first_unless_there_is_an_obstacle():
    repair, unjudged = "What can be repaired", "What could not be judged"
    text = read(findings((PAIR, Verdict.MISSING_DOWNSTREAM, 1), run_id="a")).text
    assert text.index(repair) < text.index(unjudged)
    text = read(few_findings()).text
    assert text.index(unjudged) < text.index(repair)


def test_head_names_configuration_databases_and_release():
    text = read(few_findings()).text
    for what in (
        "Configurationnightly: --config /etc/shieldtx/nightly.toml",
        "Service ordersdb1.example:5432/orders",
        "Service stockdb2.example:5432/stock, rows from db3.example:5432/stock",
        "Versionshieldtx 0.1.0",
    ):
        assert what in text


def test_head_links_the_run_before_and_counts_the_change():
    shown = read(few_findings())
    assert "../2026-01-14-120000/report.html" in shown.addresses
    assert "Last run2026-01-14 12:00:00 UTC, mismatches" in shown.text
    assert (
        "since the last run+5 \N{MINUS SIGN}1 (\N{MINUS SIGN}1 stuck, +3 missing downstream"
        in shown.text
    )


@pytest.mark.parametrize("page", [None, "javascript:alert(1)", "https://example.org/"])
def test_only_a_report_in_a_folder_next_to_it_is_linked(page):
    before = replace(context().earlier, page=page)
    assert None not in read(findings(context=context(earlier=before))).addresses
    assert page not in read(findings(context=context(earlier=before))).addresses


def test_run_with_another_configuration_is_not_compared():
    before = replace(context().earlier, totals=None)
    text = read(findings(context=context(earlier=before))).text
    assert "Mismatches since the last runnot comparable" in text


def test_findings_of_an_earlier_release_have_a_page():
    stored = json.loads(to_json(few_findings()))
    del stored["mismatched_events"], stored["context"]
    for row in stored["first_rows"]:
        del row["key"], row["biz_key"]
    text = read(from_json(json.dumps(stored))).text
    assert "32 mismatches. Not everything" in text
    assert "Last run" not in text
    assert "Version" not in text


def test_page_of_an_empty_run_has_a_note():
    text = read(findings()).text
    assert "There were no events to compare." in text
    assert "There are no mismatches." in text


@pytest.mark.parametrize("found", all_findings().values(), ids=all_findings())
def test_page_loads_nothing_and_runs_nothing(found):
    text = page(found)
    inside = ("#", "../")
    assert all(a.startswith(inside) or a == "data:," for a in Page(text).addresses)
    assert not re.search(r"https?:|url\(|@import|<script|<iframe|javascript:|\son\w+=", text)


@pytest.mark.parametrize("found", all_findings().values(), ids=all_findings())
def test_links_inside_the_page_have_targets_with_unique_names(found):
    shown = read(found)
    targets = {a.removeprefix("#") for a in shown.addresses if a.startswith("#")}
    assert targets <= set(shown.identities)
    assert len(shown.identities) == len(set(shown.identities))


@pytest.mark.parametrize("text", [HOSTILE, Trusted(HOSTILE)], ids=["text", "markup"])
def test_foreign_text_cannot_become_markup(text):
    made = page(hostile(text))
    assert "<script" not in made
    assert made.count("</style>") == 1
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", made)
    places = read(hostile("@")).text.count("@")
    quoted = 4  # for a shell: the run and the options of the repair, the options twice more
    assert Page(made).text.count(HOSTILE_AS_SHOWN) == places - quoted


@settings(max_examples=30)
@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=PAYLOAD_LETTERS))
def test_foreign_text_changes_no_element_and_no_attribute(text):
    made = page(hostile(text))
    assert made.encode("utf-8")
    assert Page(made).elements == read(hostile("plain")).elements


def test_foreign_text_cannot_change_the_direction_around_it():
    assert "shieldtx trace <bdi>0199-a</bdi></code>" in page(
        findings((PAIR, missing().verdict, 1), first_rows=(missing("0199-a"),))
    )
    assert r"<bdi>\udc00</bdi>" in page(findings(run_id="\udc00"))


@pytest.mark.parametrize("template", [*TEMPLATES.iterdir()], ids=lambda each: each.name)
def test_no_template_turns_escaping_off(template):
    assert not re.search(r"\|\s*safe|autoescape|__html__", template.read_text(encoding="utf-8"))


@pytest.mark.parametrize("found", all_findings().values(), ids=all_findings())
def test_every_class_is_in_the_style_sheet(found):
    style = TEMPLATES.joinpath("page.css").read_text(encoding="utf-8")
    known = set(re.findall(r"\.([a-z][\w-]*)", style))
    assert {c for c in read(found).classes if c not in known} == set()


def test_page_of_a_large_run_stays_small():
    assert len(page(many_findings())) < 2_000_000
