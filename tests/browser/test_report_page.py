"""The report in a real browser: it loads nothing, fits every screen, and shows the findings."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from shieldtx.reconcile.findings import OutputFolder
from shieldtx.reconcile.report import labels, writer
from tests.support.sample_findings import HOSTILE_AS_SHOWN, all_findings

FINDINGS = all_findings()
TELEPHONE, TABLET, DESK = 390, 800, 1280
A4 = 718  # the width between Chromium's print margins
SECTIONS = ["unjudged", "verdicts", "found", "days", "windows", "meanings"]

# For each element that is wider than the page: the beginning of its text.
TOO_WIDE = """
(() => {
  document.querySelectorAll('details').forEach(each => each.open = true);
  const width = document.documentElement.clientWidth;
  return [...document.body.querySelectorAll('*')]
    .filter(each => {
      const box = each.getBoundingClientRect();
      return box.width && (box.right > width + 0.5 || box.left < -0.5);
    })
    .map(each => `${Math.round(each.getBoundingClientRect().right)} > ${width}: `
      + each.outerHTML.slice(0, 120));
})()
"""
SEEN = """
[...document.querySelectorAll('header, main > section, footer')].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width > 100 && box.height > 20 && getComputedStyle(each).visibility === 'visible';
}).map(each => each.id)
"""
COUNTS = """
[...document.querySelectorAll('#verdicts tbody tr')].map(row => ({
  pair: [...row.children].slice(0, 2).map(cell => cell.innerText),
  counts: [...row.querySelectorAll('.count')].map(each => each.innerText),
  all: row.lastElementChild.innerText,
}))
"""
TILES = "[...document.querySelectorAll('.tiles li')].map(each => each.innerText.split('\\n'))"
NUMBERS = """
[...document.querySelectorAll('.pair')].map(pair => {
  pair.querySelectorAll('details').forEach(each => each.open = true);
  return [...pair.querySelectorAll('tbody tr')].map(
    row => [...row.children].map(cell => cell.innerText));
})
"""
# Elements whose text has less contrast than 4.5, the minimum of WCAG 2.2.
FAINT = """
(() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b]
    .map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = each => {
    for (; each; each = each.parentElement) {
      const colour = numbers(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.body.querySelectorAll('*')]
    .filter(each => [...each.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .filter(each => !['title', 'desc'].includes(each.tagName.toLowerCase()))
    .map(each => {
      const style = getComputedStyle(each);
      const ink = light(numbers(each.closest('svg') ? style.fill : style.color));
      const paper = light(behind(each));
      const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
      return [contrast, each.outerHTML.slice(0, 120)];
    })
    .filter(([contrast]) => contrast < 4.5);
})()
"""


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each kind of findings, as a run writes it."""
    written = {}
    for name, found in FINDINGS.items():
        folder = OutputFolder(path=tmp_path_factory.mktemp(name))
        writer.write(found, folder)
        written[name] = folder.page
    return written


@pytest.mark.parametrize("name", FINDINGS)
def test_page_loads_nothing_else_and_causes_no_browser_warning(chromium, pages, name):
    chromium.show(width=DESK)
    heard = chromium.open(pages[name])
    assert heard.requests == [pages[name].as_uri()]
    assert heard.complaints == []


def test_page_that_loads_or_runs_something_is_detected(chromium, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<meta http-equiv=Content-Security-Policy content=\"script-src 'none'\">"
        "<script>1</script><img src='beside.png'>"
    )
    heard = chromium.open(page)
    assert (tmp_path / "beside.png").as_uri() in heard.requests
    assert any("Content Security Policy" in complaint for complaint in heard.complaints)


def test_page_policy_forbids_loading_and_scripts(chromium, pages, tmp_path):
    page = tmp_path / "report.html"
    planted = "<img src='https://example.org/x.png'><script>document.title='gone'</script>"
    page.write_text(pages["few"].read_text().replace("</main>", f"{planted}</main>"))
    heard = chromium.open(page)
    assert len([each for each in heard.complaints if "Content Security Policy" in each]) == 2
    assert chromium.value("document.title").startswith("shieldtx reconciliation")
    assert chromium.value("document.querySelector('main img').naturalWidth") == 0


@pytest.mark.parametrize("name", FINDINGS)
@pytest.mark.parametrize("width", [TELEPHONE, TABLET, DESK])
def test_no_element_is_wider_than_the_screen(chromium, pages, name, width):
    chromium.show(width=width)
    chromium.open(pages[name])
    assert chromium.value(TOO_WIDE) == []
    assert chromium.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", FINDINGS)
@pytest.mark.parametrize("width", [TELEPHONE, DESK])
def test_every_section_is_visible_without_interaction(chromium, pages, name, width):
    chromium.show(width=width)
    chromium.open(pages[name])
    assert [each for each in chromium.value(SEEN) if each not in {"", "repair"}] == SECTIONS


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", FINDINGS)
def test_all_text_is_readable_in_light_and_dark_mode(chromium, pages, name, scheme):
    chromium.show(width=DESK, scheme=scheme)
    chromium.open(pages[name])
    assert chromium.value(FAINT) == []


@pytest.mark.parametrize("name", FINDINGS)
def test_counts_on_the_page_are_those_of_the_findings(chromium, pages, name):
    found = FINDINGS[name]
    chromium.show(width=DESK)
    chromium.open(pages[name])
    shown = chromium.value(COUNTS)
    assert len(shown) == len(found.by_pair)
    for row, counts in zip(shown, found.by_pair.values(), strict=True):
        assert sorted(row["counts"]) == sorted(
            f"{counts[verdict]:,} {labels.name(verdict)}" for verdict in labels.present(counts)
        )
        assert row["all"] == f"{counts.total():,}"
    totals = labels.weighed(found.totals)
    assert chromium.value(TILES) == [[f"{totals[w]:,}", labels.WEIGHTS[w]] for w in labels.WEIGHTS]


def test_daily_counts_are_those_of_the_findings(chromium, pages):
    chromium.show(width=DESK)
    chromium.open(pages["few"])
    shown = list(itertools.chain.from_iterable(chromium.value(NUMBERS)))
    assert [row[:3] for row in shown] == [
        [f"{day.day}", f"{day.events:,}", f"{day.mismatches:,}"] for day in FINDINGS["few"].days
    ]


def test_row_of_a_mismatch_is_a_line_of_a_table(chromium, pages):
    chromium.show(width=DESK)
    chromium.open(pages["few"])
    heights = chromium.value(
        "[...document.querySelectorAll('.rows tbody tr')].map(row => row.offsetHeight)"
    )
    assert len(heights) == len(FINDINGS["few"].first_rows) + 1  # and a payload
    assert max(heights) < 75


def test_click_on_a_command_selects_all_of_it(chromium, pages):
    chromium.show(width=DESK)
    chromium.open(pages["few"])
    commands = chromium.value(
        "[...document.querySelectorAll('.rows .copied')].map(each => each.innerText)"
    )
    rows = FINDINGS["few"].first_rows
    assert sorted(commands) == sorted(f"shieldtx trace {row.event_id}" for row in rows)
    style = "getComputedStyle(document.querySelector('.rows .copied')).userSelect"
    assert chromium.value(style) == "all"


def test_hostile_text_is_shown_as_text(chromium, pages):
    chromium.show(width=DESK)
    chromium.open(pages["hostile"])
    assert chromium.value("document.scripts.length") == 0
    assert chromium.value("document.title").startswith("shieldtx reconciliation")
    assert chromium.value("document.body.textContent").count(HOSTILE_AS_SHOWN) >= 12
    row = chromium.value(COUNTS)[0]
    assert row["pair"] == [
        f"{HOSTILE_AS_SHOWN} → {HOSTILE_AS_SHOWN}, events",
        HOSTILE_AS_SHOWN,
    ]


@pytest.mark.parametrize("name", FINDINGS)
def test_page_can_be_printed(chromium, pages, name):
    chromium.show(width=A4, scheme="dark", media="print")
    chromium.open(pages[name])
    assert chromium.value(TOO_WIDE) == []
    assert chromium.value(FAINT) == []
    assert chromium.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert chromium.printed().startswith(b"%PDF")
