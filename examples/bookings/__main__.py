"""Books rooms over HTTP while processes of both services are killed, then verifies every booking.

`python -m examples.bookings [--bookings N] [--kills N] [--seed N]` starts PostgreSQL and Apache
Kafka itself. It exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from examples.bookings.audit import Books, findings, unfinished
from examples.bookings.guests import Guests
from examples.bookings.hotel import WEB, WORKERS, Hotel, opened

ROOMS = 5
BOOKINGS_PER_NIGHT = 8
"""More than there are rooms: some bookings of each night are refused."""
FAULTS = 0.02
STANDSTILL_S = 60.0
"""A booking without an outcome after this counts as unfinished."""


def main() -> int:
    """Return 0 if nothing is lost, doubled or out of order."""
    parser = argparse.ArgumentParser(prog="python -m examples.bookings", description=__doc__)
    parser.add_argument("--bookings", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    options = parser.parse_args()
    console = Console()
    console.print(f"seed {options.seed}")
    with (
        TemporaryDirectory() as folder,
        opened(Path(folder), HOTEL_ROOMS=str(ROOMS), HOTEL_FAULTS=str(FAULTS)) as hotel,
    ):
        guests, killed = run(hotel, console, options.bookings, options.kills, options.seed)
        books = Books.of(hotel)
    found = findings(books, guests.made)
    report(console, books, guests, killed)
    for name, number in asdict(found).items():
        console.print(f"{name.replace('_', ' ')}: {number}")
    return 1 if found else 0


def run(
    hotel: Hotel, console: Console, bookings: int, kills: int, seed: int
) -> tuple[Guests, Counter[str]]:
    """Make all bookings, with kills at random moments, and wait until no event is on its way."""
    draw = random.Random(seed)  # noqa: S311  victims
    moments = sorted(draw.sample(range(1, bookings), min(kills, bookings - 1)))
    guests = Guests(lambda: hotel.port, nights=max(1, bookings // BOOKINGS_PER_NIGHT), seed=seed)
    killed: Counter[str] = Counter()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("bookings", total=bookings)

        def advance(done: int) -> None:
            progress.update(task, completed=done)
            while moments and done >= moments[0]:
                moments.pop(0)
                victim = draw.choice([WEB, *WORKERS])
                hotel.kill(victim)
                killed[victim] += 1

        guests.book(bookings, advance)
        progress.update(task, description="events on their way")
        wait_until_at_rest(hotel)
    hotel.stop()
    return guests, killed


def wait_until_at_rest(hotel: Hotel) -> None:
    """Wait until every booking has an outcome, or nothing has moved for a long time."""
    left, moved = unfinished(hotel), time.monotonic()
    while left and time.monotonic() - moved < STANDSTILL_S:
        hotel.check()
        time.sleep(0.2)
        before, left = left, unfinished(hotel)
        if left != before:
            moved = time.monotonic()


def report(console: Console, books: Books, guests: Guests, killed: Counter[str]) -> None:
    """Print what has happened."""
    table = Table("what", "number")
    table.add_row("bookings acknowledged", f"{len(guests.made):,}")
    states = Counter(status for status, *_ in books.bookings.values())
    for status, number in sorted(states.items()):
        table.add_row(f"bookings {status}", f"{number:,}")
    table.add_row("requests repeated", f"{guests.repeated:,}")
    for victim, number in sorted(killed.items()):
        table.add_row(f"killed: {victim}", f"{number:,}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
