"""The service `bookings`: guests book over HTTP, and hear later which room they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, HTTPException
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from examples.bookings.web import async_engine_of, sessions, web_service
from shieldtx import Event, ShieldTx

shield = ShieldTx.from_env()
engine = async_engine_of(shield.settings)
api = web_service(shield, engine)
Transaction = Annotated[AsyncSession, Depends(sessions(engine), scope="function")]


@dataclass
class Booking:
    """A guest's wish for a room."""

    id: str
    guest: str
    night: str


@dataclass
class Assigned:
    """What this service reads of the room that a booking has got."""

    booking: str
    room: int


# The key is the night: who books it first gets a room first.
@shield.publishes("bookings.made", key="night", biz_key="id")
async def book(session: AsyncSession, booking: Booking) -> Booking:
    """Store a booking; the returned value becomes the event, in the same transaction."""
    # Locks the night until the commit: so its events have the order of its bookings.
    await session.execute(
        text(
            "INSERT INTO nights VALUES (:night, 1) "
            "ON CONFLICT (night) DO UPDATE SET wanted = nights.wanted + 1"
        ),
        {"night": booking.night},
    )
    await session.execute(
        text("INSERT INTO bookings VALUES (:id, :guest, :night, 'made')"), vars(booking)
    )
    return booking


group = shield.consumer("bookings")


@group.handles("rooms.assigned", payload=Assigned)
async def confirm(session: AsyncSession, event: Event[Assigned]) -> None:
    """Tell the guest which room it is."""
    await session.execute(
        text(
            "UPDATE bookings SET status = 'confirmed', room = :room, confirmed = confirmed + 1 "
            "WHERE id = :booking"
        ),
        vars(event.payload),
    )


@group.compensates("bookings.made", payload=Booking, authorised=["rooms"])
async def cancel(session: AsyncSession, event: Event[Booking]) -> None:
    """Cancel a booking that has got no room."""
    await session.execute(
        text("UPDATE bookings SET status = 'cancelled', cancelled = cancelled + 1 WHERE id = :id"),
        {"id": event.payload.id},
    )


@api.post("/bookings", status_code=201)
async def post_booking(booking: Booking, session: Transaction) -> dict[str, str]:
    """Take a booking; 409 if its id is known: the client repeats a request without an answer."""
    try:
        await book(session, booking)
    except IntegrityError:
        raise HTTPException(409, f"booking {booking.id} exists") from None
    return {"id": booking.id, "status": "made"}


@api.get("/bookings/{booking_id}")
async def get_booking(booking_id: str, session: Transaction) -> dict[str, str | int | None]:
    """Return the state of a booking."""
    found = await session.execute(
        text("SELECT id, status, room FROM bookings WHERE id = :id"), {"id": booking_id}
    )
    row = found.mappings().one_or_none()
    if row is None:
        raise HTTPException(404, f"there is no booking {booking_id}")
    return dict(row)
