"""The benchmarks' own arithmetic; a wrong result cannot pass as a good one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from benchmarks.__main__ import EXPERIMENTS
from benchmarks.data.events import (
    KeyPosition,
    check,
    check_beginning,
    payload_text,
    position_of,
    written,
)
from benchmarks.harness.context import ExperimentResult, compared
from benchmarks.harness.samples import (
    BenchmarkFailed,
    Measured,
    Run,
    Sample,
    losses,
    measured,
    percentile,
    ratios,
)
from benchmarks.output.report import Report
from benchmarks.targets.figures import FIGURES, Direction, Figure

LINE = list(written(20, keys=4))


def a_run(rate: float) -> Run:
    return Run(events=1_000, seconds=1_000 / rate, cpu_seconds=0.05, wal_bytes=300_000)


def test_events_go_round_the_keys_with_a_number_for_each_key() -> None:
    assert LINE[:5] == [
        KeyPosition("key-0", 1),
        KeyPosition("key-1", 1),
        KeyPosition("key-2", 1),
        KeyPosition("key-3", 1),
        KeyPosition("key-0", 2),
    ]


def test_event_payload_has_about_300_bytes() -> None:
    assert 250 < len(payload_text(position_of(99_999, keys=1_000))) < 320


def test_all_events_once_and_in_key_order_are_a_good_result() -> None:
    by_key = sorted(LINE, key=lambda position: position.key)
    check(by_key, LINE).require_whole("the relay")


def swap_two_of_a_key(found: list[KeyPosition]) -> list[KeyPosition]:
    found[0], found[4] = found[4], found[0]
    return found


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda found: found[:-1], "1 are missing"),
        (lambda found: [*found, found[-1]], "1 are doubled"),
        (lambda found: [*found, KeyPosition("key-9", 1)], "1 were never written"),
        (swap_two_of_a_key, "1 are out of order"),
    ],
)
def test_lost_doubled_foreign_or_reordered_records_are_found(
    spoil: Callable[[list[KeyPosition]], list[KeyPosition]], what: str
) -> None:
    reading = check(spoil(list(LINE)), LINE)
    with pytest.raises(BenchmarkFailed, match=what):
        reading.require_whole("the relay")


def test_peer_without_ordering_is_checked_for_records_only() -> None:
    swapped = swap_two_of_a_key(list(LINE))
    check(swapped, LINE).require_whole("a peer", ordered=False)
    with pytest.raises(BenchmarkFailed):
        check(swapped[:-1], LINE).require_whole("a peer", ordered=False)


def test_first_events_may_differ_from_key_to_key() -> None:
    found = [each for each in LINE if each.key != "key-0" or each.number < 3]
    check_beginning(found, len(found)).require_whole("a window")


def test_gap_in_the_first_events_of_a_key_is_found() -> None:
    found = [each for each in LINE if each != KeyPosition("key-2", 2)]
    with pytest.raises(BenchmarkFailed, match="1 are missing"):
        check_beginning(found, len(found)).require_whole("a window")


def test_too_few_first_events_are_found() -> None:
    with pytest.raises(BenchmarkFailed, match="4 are missing"):
        check_beginning(LINE[:16], 20).require_whole("a window")


def test_run_is_the_difference_of_two_samples() -> None:
    run = Run.between(
        Sample(at=10.0, cpu=1.0, count=2_000, wal=500_000),
        Sample(at=12.0, cpu=1.5, count=12_000, wal=4_500_000),
    )
    assert (run.rate, run.cpu_us, run.wal_per_event) == (5_000, 50, 400)


def test_without_a_database_no_wal_bytes_are_reported() -> None:
    run = Run.between(Sample(at=0, cpu=0, count=0), Sample(at=1, cpu=1, count=10))
    assert run.wal_per_event is None
    assert measured([1.0], [run]).wal_per_event is None


def test_ratios_compare_the_runs_of_the_same_round() -> None:
    found = ratios([a_run(300), a_run(200), a_run(900)], [a_run(100), a_run(200), a_run(300)])
    assert found.values == pytest.approx((3.0, 1.0, 3.0))
    assert found.median == pytest.approx(3.0)
    assert (found.lowest, found.highest) == pytest.approx((1.0, 3.0))
    assert (found.cpu_us, found.wal_per_event) == pytest.approx((50, 300))


def test_loss_is_the_missing_share_of_the_rate() -> None:
    assert losses([a_run(75)], [a_run(100)]).median == pytest.approx(0.25)


def test_subjects_that_were_not_run_are_not_compared() -> None:
    runs = {"ours": [a_run(300)], "theirs": [a_run(100)]}
    found = compared(runs, {"good": ("ours", "theirs"), "absent": ("ours", "others")})
    assert found.keys() == {"good"}


@pytest.mark.parametrize(
    ("part", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_percentile_is_a_measured_value(part: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), part) == value


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(BenchmarkFailed):
        percentile([], 0.5)


def test_target_is_a_minimum_or_a_maximum_by_direction() -> None:
    speed = Figure(name="a", title="a", target=3, direction=Direction.AT_LEAST)
    cost = Figure(name="b", title="b", target=0.25, direction=Direction.AT_MOST)
    assert (speed.is_met_by(3.0), speed.is_met_by(2.99)) == (True, False)
    assert (cost.is_met_by(0.25), cost.is_met_by(0.26)) == (True, False)


def test_each_figure_is_measured_by_one_experiment() -> None:
    measured_ = [name for module in EXPERIMENTS.values() for name in module.FIGURES]
    assert sorted(measured_) == sorted(figure.name for figure in FIGURES)


def test_report_is_flat_with_the_median_by_figure_name() -> None:
    report = Report(fdatasync_us=38.04, postgres="18.6")
    value = Measured(values=(3.0, 5.0, 4.0), cpu_us=44.44, wal_per_event=410.0)
    report.add(
        ExperimentResult(figures={"relay": value}, absolutes={"alone": Measured(values=(7.0,))})
    )
    flat = json.loads(json.dumps(report.flat()))
    assert {name: flat[name] for name in flat if name.startswith(("relay", "alone"))} == {
        "relay": 4.0,
        "relay_lowest": 3.0,
        "relay_highest": 5.0,
        "relay_cpu_us_per_event": 44.44,
        "relay_wal_bytes_per_event": 410.0,
        "alone": 7.0,
    }
    assert flat["machine_fdatasync_us"] == 38.0
