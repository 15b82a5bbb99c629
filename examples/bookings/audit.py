"""Verifies both services with SQL of its own: what every booking must have become."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from sqlalchemy import Connection, create_engine, text

from examples.bookings.hotel import SERVICES, Hotel

BOOKINGS = "SELECT id, status, room, confirmed, cancelled FROM bookings"

MADE = """
SELECT key, biz_key FROM shield_outbox
WHERE event_type = 'bookings.made' AND tx_kind = 'COMMIT' ORDER BY seq
"""

OPEN = """
SELECT (SELECT count(*) FROM shield_outbox WHERE status NOT IN ('PROCESSED', 'DISCARDED'))
     + (SELECT count(*) FROM shield_inbox WHERE status NOT IN ('PROCESSED', 'MAX_RECONSUMED'))
"""


@dataclass(kw_only=True)
class Findings:
    """Numbers of bookings with something wrong: all are 0 unless the promise is broken."""

    lost: int = 0
    """Acknowledged to a guest, and not in the database."""
    unfinished: int = 0
    """Neither confirmed nor cancelled, or both."""
    doubled: int = 0
    """With an effect that happened more than once."""
    differing: int = 0
    """Confirmed with another room than the assigned one, or without one."""
    overbooked: int = 0
    """Rooms that two bookings have in one night."""
    out_of_order: int = 0
    """Refused, although a booking that was made later got a room of that night."""

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


@dataclass(kw_only=True)
class Books:
    """The tables of both services."""

    bookings: dict[str, tuple[str, int | None, int, int]]
    assignments: list[tuple[str, str, int]]
    order: dict[str, list[str]]
    """The bookings of each night, in the order of their transactions."""

    @classmethod
    def of(cls, hotel: Hotel) -> Books:
        """Read both databases."""
        with _connected(hotel, "bookings") as connection:
            bookings = {
                row.id: (row.status, row.room, row.confirmed, row.cancelled)
                for row in connection.execute(text(BOOKINGS))
            }
            order = defaultdict(list)
            for night, booking in connection.execute(text(MADE)):
                order[night].append(booking)
        with _connected(hotel, "rooms") as connection:
            rows = connection.execute(text("SELECT booking, night, room FROM assignments"))
            assignments = [(row.booking, row.night, row.room) for row in rows]
        return cls(bookings=bookings, assignments=assignments, order=order)


def unfinished(hotel: Hotel) -> int:
    """Return how many bookings have no outcome yet, and events no final state."""
    with _connected(hotel, "bookings") as connection:
        waiting = connection.execute(text("SELECT count(*) FROM bookings WHERE status = 'made'"))
        return int(waiting.scalar_one()) + sum(_open_events(hotel, each) for each in SERVICES)


def findings(books: Books, acknowledged: Collection[str]) -> Findings:
    """Compare the tables of both services with each other, and with the acknowledged bookings."""
    rooms = {booking: room for booking, _, room in books.assignments}
    taken = {(night, room) for _, night, room in books.assignments}
    found = Findings(
        lost=len(set(acknowledged) - books.bookings.keys()),
        doubled=len(books.assignments) - len(rooms),
        overbooked=len(books.assignments) - len(taken),
        out_of_order=sum(_refused_too_early(order, rooms) for order in books.order.values()),
    )
    for booking, (status, room, confirmed, cancelled) in books.bookings.items():
        found.doubled += confirmed > 1 or cancelled > 1
        found.unfinished += confirmed + cancelled == 0 or (confirmed > 0 and cancelled > 0)
        found.differing += status == "confirmed" and rooms.get(booking) != room
        found.differing += status != "confirmed" and booking in rooms
    return found


def _refused_too_early(order: list[str], rooms: dict[str, int]) -> int:
    last = max((place for place, booking in enumerate(order) if booking in rooms), default=-1)
    return sum(booking not in rooms for booking in order[: last + 1])


def _open_events(hotel: Hotel, service: str) -> int:
    with _connected(hotel, service) as connection:
        return int(connection.execute(text(OPEN)).scalar_one())


@contextmanager
def _connected(hotel: Hotel, service: str) -> Iterator[Connection]:
    engine = create_engine(hotel.url(service))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()
