"""How values become markup: escaped, unless they say that they are markup."""

from __future__ import annotations

from shieldtx.reconcile.report import markup
from shieldtx.reconcile.report.markup import Markup, element, foreign, joined, table, with_code
from tests.support.html_reader import Page
from tests.support.sample_findings import HOSTILE, HOSTILE_AS_SHOWN


def test_text_is_escaped_and_markup_is_not():
    assert element("p", "a < b & c", element("b", "'d'")) == (
        "<p>a &lt; b &amp; c<b>&#x27;d&#x27;</b></p>"
    )


def test_attributes_are_escaped_and_named_as_in_html():
    made = element("th", class_="n", data_head='"x"', colspan=None, x=1 / 3)
    assert made == '<th class="n" data-head="&quot;x&quot;" x="0.33333"></th>'


def test_an_element_without_content_is_not_closed():
    assert element("br") == "<br>"


def test_what_is_none_is_left_out():
    assert joined("a", None, Markup("<br>")) == "a<br>"


def test_what_others_wrote_stays_text_and_turns_nothing_around():
    made = foreign(HOSTILE)
    assert "<script" not in made
    assert "\x1b" not in made
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in made
    assert made.startswith("<bdi>")
    assert Page(made).text == HOSTILE_AS_SHOWN


def test_half_a_character_can_be_written_out():
    assert foreign("\udc00").encode("utf-8") == rb"<bdi>\udc00</bdi>"


def test_commands_in_a_sentence_are_code():
    assert with_code("Run `a <b>` twice.") == "Run <code>a &lt;b&gt;</code> twice."
    assert with_code("Nothing.") == "Nothing."


def test_cells_of_a_table_name_their_columns():
    made = table(["Day", "Events"], [["Monday", "7"]], caption="Week", numbers_from=1)
    assert Page(made).tables == [[["Day", "Events"], ["Monday", "7"]]]
    assert '<th scope="row">Monday</th>' in made
    assert '<td class="n" data-head="Events">7</td>' in made
    assert "<caption>Week</caption>" in made


def test_lists_and_definitions_are_well_formed():
    assert Page(markup.items(["a", "b"])).text == "ab"
    assert Page(markup.definitions([("a", "1"), ("b", "<2>")])).text == "a1b<2>"
