"""The FastAPI example: two asynchronous services, whose processes are killed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import pytest

from examples.bookings.audit import Books, Findings, findings
from examples.retail.stage import PROJECT

pytestmark = pytest.mark.demo

MADE = {"night 1": ["b1", "b2", "b3"]}


def books(
    *,
    bookings: dict[str, tuple[str, int | None, int, int]] | None = None,
    assignments: list[tuple[str, str, int]] | None = None,
) -> Books:
    """Return tables that are in order: b1 and b2 have the rooms, b3 is refused."""
    correct = {
        "b1": ("confirmed", 1, 1, 0),
        "b2": ("confirmed", 2, 1, 0),
        "b3": ("cancelled", None, 0, 1),
    }
    rooms = [("b1", "night 1", 1), ("b2", "night 1", 2)]
    return Books(
        bookings=correct | (bookings or {}),
        assignments=rooms if assignments is None else assignments,
        order=MADE,
    )


def test_every_booking_has_one_outcome_whichever_process_dies() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.bookings", "--bookings", "160", "--kills", "5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=480,
        cwd=PROJECT,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for each in fields(Findings):
        assert f"{each.name.replace('_', ' ')}: 0" in done.stdout.splitlines()
    assert sum(map(int, re.findall(r"killed: [a-z ]+│ (\d+)", done.stdout))) == 5, done.stdout
    counts = dict(re.findall(r"bookings (confirmed|cancelled) +│ (\d+)", done.stdout))
    assert sum(map(int, counts.values())) == 160
    assert int(counts["cancelled"]) > 0, "some nights are full"


def test_books_in_order_have_no_findings() -> None:
    assert findings(books(), ["b1", "b2", "b3"]) == Findings()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (books(bookings={"b3": ("made", None, 0, 0)}), Findings(unfinished=1)),
        (books(bookings={"b3": ("cancelled", None, 0, 2)}), Findings(doubled=1)),
        (books(bookings={"b1": ("confirmed", 2, 1, 0)}), Findings(differing=1)),
        (books(bookings={"b1": ("cancelled", 1, 1, 1)}), Findings(unfinished=1, differing=1)),
        (
            books(assignments=[("b1", "night 1", 1), ("b2", "night 1", 1)]),
            Findings(overbooked=1, differing=1),
        ),
        (
            books(
                bookings={"b2": ("cancelled", None, 0, 1), "b3": ("confirmed", 2, 1, 0)},
                assignments=[("b1", "night 1", 1), ("b3", "night 1", 2)],
            ),
            Findings(out_of_order=1),
        ),
        (
            books(assignments=[("b1", "night 1", 1), ("b2", "night 1", 2), ("b2", "night 1", 3)]),
            Findings(doubled=1, differing=1),
        ),
    ],
)
def test_each_kind_of_damage_is_found(wrong: Books, expected: Findings) -> None:
    assert findings(wrong, ["b1", "b2", "b3"]) == expected


def test_acknowledged_booking_that_is_not_stored_is_lost() -> None:
    assert findings(books(), ["b1", "b2", "b3", "b4"]) == Findings(lost=1)
