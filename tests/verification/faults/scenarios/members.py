"""The consumers of a bank: how scenarios start, kill and stop them."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from tests.verification.faults.banks import Banks
from tests.verification.faults.failpoints import Failpoint
from tests.verification.faults.foreign_client import ForeignClient
from tests.verification.faults.side import Side
from tests.verification.faults.workers import Worker


def launch_dying(side: Side, places: Sequence[tuple[str, str]]) -> list[Worker]:
    """Start consumers, each of which dies at another position."""
    return [
        side.launch(
            "consume",
            side.group,
            **side.broken_at(Failpoint(step=step, when=when, action="exit")),
        )
        for step, when in places
    ]


def await_deaths(banks: Banks, dying: Sequence[Worker]) -> None:
    """Wait until all of them have been killed."""
    banks.until(lambda: not any(worker.is_running for worker in dying), "every one dies", 60)
    banks.expect(
        {worker.exit_status for worker in dying} == {-signal.SIGKILL},
        f"they died otherwise: {[worker.exit_status for worker in dying]}",
    )


def await_members(banks: Banks, side: Side, workers: Sequence[Worker]) -> None:
    """Wait until consumers are the members of their group, or one has died before."""
    members = ForeignClient(banks.kafka.bootstrap).members
    banks.until(
        lambda: (
            len(members(side.group)) == len(workers)
            or not all(worker.is_running for worker in workers)
        ),
        "all have joined",
        60,
    )


def stop_consumers(side: Side) -> None:
    """Let the consumers of a bank leave their group, and end."""
    for worker in consumers_of(side):
        worker.terminate()


def consumers_of(side: Side) -> list[Worker]:
    """Return the running consumers of a bank."""
    return [w for w in side.workers if w.name.startswith("consume") and w.is_running]


def await_rollbacks(banks: Banks) -> None:
    """Wait until every transfer is credited or refused, and the refusals are on their topic."""
    side = banks.downstream
    banks.until(
        lambda: (
            not side.unsettled()
            and banks.upstream.one("SELECT count(*) FROM transfer") == sum(side.inbox().values())
        ),
        "every refusal is on its way back",
        60,
    )
