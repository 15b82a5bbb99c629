"""The service `rooms`: assigns a room to each booking as long as the night has one."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from examples.bookings.web import async_engine_of
from shieldtx import Event, Refused, RetryPolicy, Settings, ShieldTx

settings = Settings.from_env()
# Coroutine handlers run on psycopg unless an engine with asyncpg is given.
shield = ShieldTx(settings, async_engine=async_engine_of(settings))

ROOMS = int(os.environ.get("HOTEL_ROOMS", "5"))
"""Rooms of the hotel, each night."""

FAULTS = float(os.environ.get("HOTEL_FAULTS", "0"))
"""The share of attempts (0 to 1) that fail after their writes, as code of the real world does."""


@dataclass
class Wanted:
    """What this service reads of a booking."""

    id: str
    night: str


@dataclass
class Assigned:
    """A room is reserved for a booking."""

    booking: str
    night: str
    room: int


class KeyServiceDown(Exception):
    """A failure that has passed at the next attempt."""


shield.declare("rooms.assigned", payload=Assigned)


@shield.consumer("rooms").handles(
    "bookings.made",
    payload=Wanted,
    retry=RetryPolicy(max_attempts=30, first=timedelta(seconds=0.1), longest=timedelta(seconds=1)),
)
async def assign(session: AsyncSession, event: Event[Wanted]) -> None:
    """Reserve the next room of the night, or refuse: `bookings` then cancels.

    Events of one night are handled one after the other, so counting its rooms needs no lock.
    """
    booking = event.payload
    taken = await session.scalar(
        text("SELECT count(*) FROM assignments WHERE night = :night"), {"night": booking.night}
    )
    if taken >= ROOMS:
        raise Refused(f"no room is left for {booking.night}")
    assigned = Assigned(booking=booking.id, night=booking.night, room=taken + 1)
    await session.execute(
        text("INSERT INTO assignments (booking, night, room) VALUES (:booking, :night, :room)"),
        vars(assigned),
    )
    shield.outbox.add(
        session,
        Event(type="rooms.assigned", payload=assigned, key=booking.night, biz_key=booking.id),
    )
    if random.random() < FAULTS:  # noqa: S311  not for secrecy
        raise KeyServiceDown("no answer within 50 ms")
