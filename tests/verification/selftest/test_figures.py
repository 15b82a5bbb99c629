"""Tests of the figures that the faults' command prints for docs/explanation/guarantees.md."""

from __future__ import annotations

from typing import Any

from tests.verification.faults.markdown import figures_of


def _row(fault: str, **counts: Any) -> dict[str, Any]:
    return {"id": fault, "name": "a fault", "drain_s": 0.5, "passed": True, **counts}


def test_faults_are_in_the_order_of_their_numbers_and_added_up() -> None:
    report = {
        "faults": [
            _row("F10", attempted=1_000, drain_s=2.0),
            _row("F9b", attempted=10),
            _row("F9a", attempted=1, records=7),
        ]
    }

    lines = figures_of(report).splitlines()

    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| F9a a fault",
        "| F9b a fault",
        "| F10 a fault",
        "| all",
    ]
    assert lines[-1] == "| all | 1,011 | 0 | 0 | 7 | 0 | 0 | 0 | 0 | 2.0 |"


def test_false_reports_and_missed_damage_are_counted() -> None:
    reconciled = {
        "runs": 1,
        "planted": 10,
        "reported": 8,
        "right": 4,
        "repaired": 3,
        "repaired_again": 1,
    }

    lines = figures_of({"faults": [_row("F34", reconciled=reconciled)]}).splitlines()

    assert lines[-1] == "| F34 | 1 | 10 | 8 | 0.500 | 0.400 | 3 | 1 |"


def test_what_was_not_caught_or_not_clean_is_not_counted() -> None:
    report = {
        "sweep": [_row("settle.after.exit"), _row("settle.before.exit") | {"passed": False}],
        "mutants": [
            {"caught": True, "tries": 1},
            {"caught": True, "tries": 2},
            {"caught": False, "tries": 1},
        ],
        "model": {"states": 12_345, "violations": 1},
        "model-mutants": {"A": {"caught": True}, "B": {"caught": False}},
    }

    assert figures_of(report).splitlines() == [
        "The sweep: 1 of 2 clean.",
        "Mutants: 2 of 3 caught, 1 at the first try.",
        "The model: 12,345 states, 1 violations.",
        "Mutants of the model: 1 of 2 caught.",
    ]
