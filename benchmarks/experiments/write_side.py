"""What an event costs the business transaction that writes it."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Outcome, rates
from benchmarks.children import Subject, sample_in
from benchmarks.measures import BenchmarkFailed, Run, losses
from benchmarks.servers import Place
from benchmarks.subjects.write_side import BLOCK

FIGURES: Final = ("add_cost",)


def run(bench: Bench) -> Outcome:
    """Run transactions with and without an event by turns, and compare their rates."""
    plain: list[Run] = []
    with_event: list[Run] = []
    for number in range(bench.sizes.rounds):
        bench.say(f"outbox.add, round {number + 1} of {bench.sizes.rounds}")
        with bench.servers.place() as place:
            kinds = _blocks(bench, place)
            _require_rows(place, bench.sizes.transactions)
        plain.append(kinds[0])
        with_event.append(kinds[1])
    return Outcome(
        figures={"add_cost": losses(with_event, plain)},
        absolutes=rates({"transactions_with_event": with_event, "transactions_plain": plain}),
    )


def _blocks(bench: Bench, place: Place) -> tuple[Run, Run]:
    """Run all blocks; return the sums of those without events and of those with them."""
    runs: tuple[list[Run], list[Run]] = ([], [])
    with Subject("write_side", place.job | {"transactions": bench.sizes.transactions}) as subject:
        subject.await_ready()
        subject.begin()
        for block in range(2 * bench.sizes.transactions // BLOCK):
            begin, end = sample_in(subject.hear()), sample_in(subject.hear())
            runs[block % 2].append(
                Run(events=BLOCK, seconds=end.at - begin.at, cpu_seconds=end.cpu - begin.cpu)
            )
    return _sum(runs[0]), _sum(runs[1])


def _sum(runs: list[Run]) -> Run:
    return Run(
        events=sum(run.events for run in runs),
        seconds=sum(run.seconds for run in runs),
        cpu_seconds=sum(run.cpu_seconds for run in runs),
    )


def _require_rows(place: Place, transactions: int) -> None:
    with place.connect() as connection:
        events = connection.execute("SELECT count(*) FROM shield_outbox").fetchone()
        orders = connection.execute("SELECT count(*) FROM bench_order").fetchone()
    # One block more, for warming up.
    if events != (transactions,) or orders != (2 * transactions + BLOCK,):
        raise BenchmarkFailed(f"{events} events and {orders} rows for {transactions} transactions")
