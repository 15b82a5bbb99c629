"""The figures of `build/faults.json` as docs/explanation/guarantees.md shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_COUNTS: Final = {
    "attempted": "tried",
    "info": "info",
    "fail": "failed",
    "records": "records",
    "duplicate_records": "duplicates",
    "effects": "effects",
    "compensations": "taken back",
    "parked": "parked",
}


def figures_of(report: Mapping[str, Any]) -> str:
    """Return the table of the faults, with their reconciliations, and the sums of the rest.

    Parts that were not run are omitted.
    """
    faults = report.get("faults", ())
    parts = (_faults(faults), _reconciliations(faults), _sums(report))
    return "\n\n".join("\n".join(part) for part in parts if part)


def _faults(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    sums = {name: sum(row.get(name, 0) for row in rows) for name in _COUNTS}
    longest = max(row["drain_s"] for row in rows)
    return [
        *_header("fault", *_COUNTS.values(), "drain"),
        *(
            _counts(f"{row['id']} {row['name']}", row, row["drain_s"])
            for row in sorted(rows, key=_place)
        ),
        _counts("all", sums, longest),
    ]


def _place(row: Mapping[str, Any]) -> tuple[int, str]:
    letter = row["id"].lstrip("F0123456789")
    return int(row["id"].removeprefix("F").removesuffix(letter)), letter


def _counts(title: str, counts: Mapping[str, int], drain_s: float) -> str:
    return _line(title, *(f"{counts.get(name, 0):,}" for name in _COUNTS), f"{drain_s:.1f}")


def _reconciliations(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    judged = [(row["id"], row["reconciled"]) for row in rows if "reconciled" in row]
    if not judged:
        return []
    header = ("runs judged", "planted", "reported", "precision", "recall", "rows repaired")
    return [
        *_header("fault", *header, "by a second repair"),
        *(
            _line(
                fault,
                *(f"{of[name]:,}" for name in ("runs", "planted", "reported")),
                _share(of["right"], of["reported"]),
                _share(of["right"], of["planted"]),
                *(f"{of[name]:,}" for name in ("repaired", "repaired_again")),
            )
            for fault, of in sorted(judged)
        ),
    ]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "-"


def _sums(report: Mapping[str, Any]) -> list[str]:
    lines = []
    if (sweep := report.get("sweep")) is not None:
        clean = sum(row["passed"] for row in sweep)
        lines.append(f"The sweep: {clean} of {len(sweep)} clean.")
    if (mutants := report.get("mutants")) is not None:
        caught = [each for each in mutants if each["caught"]]
        first = sum(each["tries"] == 1 for each in caught)
        lines.append(f"Mutants: {len(caught)} of {len(mutants)} caught, {first} at the first try.")
    for part, unit in (("simulation", "schedules"), ("model", "states")):
        if (of := report.get(part)) is not None:
            lines.append(f"The {part}: {of[unit]:,} {unit}, {of['violations']} violations.")
        lines += _caught(report, part)
    return lines + _histories(report)


def _caught(report: Mapping[str, Any], part: str) -> list[str]:
    of = report.get(f"{part}-mutants")
    if of is None:
        return []
    caught = sum(each["caught"] for each in of.values())
    return [f"Mutants of the {part}: {caught} of {len(of)} caught."]


def _histories(report: Mapping[str, Any]) -> list[str]:
    """Return lines about the histories of the reconciliation: by the rules, on Spark, repaired."""
    lines = []
    for part, how in (("histories", "by the rules in Python"), ("nights", "on Spark")):
        if (of := report.get(part)) is not None:
            lines.append(
                f"Histories {how}: {of['histories']:,}, {of['nights']:,} nights, "
                f"{of['further']:,} of them from where an earlier one had ended; planted "
                f"{of['planted']:,}, reported {of['reported']:,}, precision "
                f"{_share(of['right'], of['reported'])}, recall "
                f"{_share(of['right'], of['planted'])}; {of['wrong']} with something wrong."
            )
        lines += _caught(report, part)
    if (of := report.get("repairs")) is not None:
        lines.append(
            f"Repaired nights: {of['repairs']:,}, ended at {of['deaths']:,} steps and begun again; "
            f"of {of['found']:,} mismatches {of['left']:,} left to an operator; {of['wrong']} with "
            "something wrong."
        )
    return lines + _caught(report, "repairs")


def _header(*titles: str) -> list[str]:
    return [_line(*titles), _line(*("---" for _ in titles)).replace(" ", "")]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
