"""The pages and diagrams that are written from the code are as the code is now."""

from __future__ import annotations

import hashlib
import inspect
import re
from pathlib import Path

import pytest

from docs import reference_pages
from docs.reference_pages import COLUMNS
from shieldtx.brokers import cloudevents, signing
from shieldtx.store.tables import tables
from tests.docs.pages import DOCS, name_of

WRITTEN = reference_pages.written()
DIAGRAMS = sorted((DOCS / "diagrams").glob("*.mmd"))


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_written_page_is_up_to_date(page: Path) -> None:
    assert page.read_text() == WRITTEN[page], "run `make reference`"


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=name_of)
def test_picture_was_drawn_from_its_diagram(diagram: Path) -> None:
    checksum = hashlib.sha256(diagram.read_bytes()).hexdigest()
    picture = DOCS / "pictures" / f"{diagram.stem}.svg"
    assert checksum in picture.read_text(), "run `make pictures`"


def test_each_state_is_explained() -> None:
    for lifecycle, statuses in reference_pages.LIFECYCLES:
        named = {name for name, _ in reference_pages.meanings(statuses)}
        assert named == set(lifecycle.states)


def test_each_explained_column_exists() -> None:
    columns = {table.name: set(table.columns.keys()) for table in tables().metadata.tables.values()}
    columns["every"] = set().union(*columns.values())
    explained = {(table, name) for table, names in COLUMNS.items() for name in names}
    assert explained <= {(table, name) for table, names in columns.items() for name in names}


def test_limits_of_record_page_are_those_of_the_code() -> None:
    page = (DOCS / "reference" / "record.md").read_text()
    for limit in (
        cloudevents.MAX_HEADERS,
        cloudevents.MAX_HEADER_BYTES,
        cloudevents.MAX_PAYLOAD_BYTES,
        cloudevents.MAX_NAME_BYTES,
        cloudevents.MAX_KEY_BYTES,
    ):
        assert f"{limit:,}" in page


def test_each_header_of_a_record_is_explained() -> None:
    page = (DOCS / "reference" / "record.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_-]+)` \|", page, re.MULTILINE))
    sources = [inspect.getsource(cloudevents), inspect.getsource(signing)]
    written = {name for text in sources for name in re.findall(r'"((?:ce_|content-)[a-z]+)"', text)}
    assert written == documented
