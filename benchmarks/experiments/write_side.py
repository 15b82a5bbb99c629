"""The cost of an event in the business transaction that writes it."""

from __future__ import annotations

from typing import Final

from benchmarks.harness.context import Bench, ExperimentResult, rates
from benchmarks.harness.interleaved import BLOCK
from benchmarks.harness.interleaved_blocks import by_blocks
from benchmarks.harness.samples import BenchmarkFailed, Run, losses
from benchmarks.harness.servers import RunEnvironment

FIGURES: Final = ("add_cost",)


def run(bench: Bench) -> ExperimentResult:
    """Run transactions with and without an event, alternating, and compare their rates."""
    plain: list[Run] = []
    with_event: list[Run] = []
    for number in range(bench.sizes.rounds):
        bench.say(f"outbox.add, round {number + 1} of {bench.sizes.rounds}")
        with bench.servers.place() as place:
            kinds = by_blocks(bench, place, "write_side")
            _require_rows(place, bench.sizes.transactions)
        plain.append(kinds[0])
        with_event.append(kinds[1])
    return ExperimentResult(
        figures={"add_cost": losses(with_event, plain)},
        absolutes=rates({"transactions_with_event": with_event, "transactions_plain": plain}),
    )


def _require_rows(place: RunEnvironment, transactions: int) -> None:
    with place.connect() as connection:
        events = connection.execute("SELECT count(*) FROM shield_outbox").fetchone()
        orders = connection.execute("SELECT count(*) FROM bench_order").fetchone()
    # One block more, for the warm-up.
    if events != (transactions,) or orders != (2 * transactions + BLOCK,):
        raise BenchmarkFailed(f"{events} events and {orders} rows for {transactions} transactions")
