"""Two kinds of work in one process, in alternating blocks; started and measured by the parent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from sqlalchemy.orm import Session, sessionmaker

from benchmarks.data.events import KeyPosition, position_of
from benchmarks.harness.child_protocol import ProgressReporter
from benchmarks.subjects.application import application
from shieldtx import ShieldTx

BLOCK: Final = 100
"""Transactions of a block of one kind."""
KEYS: Final = 1_000

Kind = Callable[[ShieldTx, sessionmaker[Session], KeyPosition], None]


def by_turns(first: Kind, second: Kind, *, warm_up: Kind) -> None:
    """Alternate blocks of `first` and of `second`; a sample before and after each."""
    reporter = ProgressReporter()
    job = reporter.job
    app = application(url=job["url"], bootstrap=job["bootstrap"], prefix=job["prefix"])
    sessions = sessionmaker(app.engine)
    positions = (
        position_of(index, KEYS) for index in range((2 * job["transactions"] // BLOCK + 1) * BLOCK)
    )
    _block(app, sessions, positions, warm_up)
    reporter.ready()
    for block in range(2 * job["transactions"] // BLOCK):
        reporter.sample(2 * block)
        _block(app, sessions, positions, second if block % 2 else first)
        reporter.sample(2 * block + 1)
    reporter.await_end()
    app.close()


def _block(
    app: ShieldTx, sessions: sessionmaker[Session], positions: Iterator[KeyPosition], kind: Kind
) -> None:
    for position in islice(positions, BLOCK):
        kind(app, sessions, position)
