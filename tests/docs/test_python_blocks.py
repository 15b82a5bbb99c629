"""Each Python block of the documentation runs, or is marked with the reason why not.

The blocks of a page run one after the other in one namespace, in a folder of their own.
Preparations that a reader need not see are in a comment, `<!-- invisible-code-block: python ...
-->`. A block that does not run has `<!-- skip: next "the reason" -->` before it.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType
from unittest import SkipTest

import pytest
from sybil import Sybil
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from tests.docs.pages import PAGES, name_of

BLOCKS = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()])
WITH_BLOCKS = [page for page in PAGES if "```python" in page.read_text()]


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A module of its own in a service whose database is a file, so that types can be looked up."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHIELDTX_SOURCE", "orders")
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", f"sqlite:///{tmp_path}/orders.db")
    module = ModuleType("shop_of_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__dict__


def evaluate(document: Document) -> list[str]:
    """Run the blocks of a page, and return the reasons of those that are not run."""
    reasons = []
    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest as skipped:
            reasons.append(str(skipped))
    return reasons


def worker_threads() -> set[threading.Thread]:
    """Return the threads that consumers have started and not ended."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("shieldtx-fetch")}


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_python_blocks_of_page_run(page: Path, namespace: dict[str, object]) -> None:
    document = BLOCKS.parse(page)
    document.namespace = namespace
    before = worker_threads()
    reasons = evaluate(document)
    assert worker_threads() <= before, "close the workers: a reader copies the blocks"
    assert all(len(reason.split()) > 2 for reason in reasons), "write why a block is not run"
    assert page.read_text().count("<!-- skip:") == len(reasons)


def test_a_block_that_fails_fails_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError):
        evaluate(BLOCKS.parse(page))
