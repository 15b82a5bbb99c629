"""Splits a batch that the database refuses, down to the record that causes the refusal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from shieldtx.domain.reasons import reason_of
from shieldtx.errors import ShieldTxError
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent, Parked, Receipt, ReceivedInPart

log = logging.getLogger(__name__)

Receive = Callable[[Sequence[IncomingEvent], Sequence[Parked]], Receipt]
_Failure = DBAPIError | MemoryError | UnicodeEncodeError

_REFUSED: Final = ("22", "23", "54")
"""Classes of SQLSTATE: data, integrity, limits of the server. A retry would fail again."""
_TOO_MUCH: Final = ("53200", "53400", "57014", "XX000")
"""Out of memory, a configured limit, a timeout, an allocation above 1 GB: fewer rows may work."""


def receive_in_halves(
    receive: Receive, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked], *, group: str
) -> Receipt:
    """Receive a batch of a group; if the database refuses the batch, receive its halves in order.

    A refused record is parked with the reason. Raises ShieldTxError, which names the record, if the
    record cannot be parked. Raises other errors of `receive`, which the batch does not cause. After
    received records, either error is inside ReceivedInPart.
    """
    try:
        return receive(arrivals, parked)
    except (DBAPIError, MemoryError, UnicodeEncodeError) as error:
        if not may_be_its_fault(error):
            raise
        reason = error
    if len(arrivals) + len(parked) > 1:
        log.warning(
            "batch refused, stored in halves",
            extra={
                "action": "batch_halved",
                "group": group,
                "count": len(arrivals) + len(parked),
                "error": refusal_of(reason),
            },
        )
        half, parked_half = (len(arrivals) + 1) // 2, (len(parked) + 1) // 2
        if arrivals and parked:
            half, parked_half = len(arrivals), 0
        first = receive_in_halves(receive, arrivals[:half], parked[:parked_half], group=group)
        try:
            second = receive_in_halves(receive, arrivals[half:], parked[parked_half:], group=group)
        except ReceivedInPart as part:
            raise ReceivedInPart(_both(first, part.receipt), part.error) from part.error
        except Exception as error:
            raise ReceivedInPart(first, error) from error
        return _both(first, second)
    if arrivals and is_refused(reason):
        record = arrivals[0].record
        refused = Parked(record=record, reason=f"the inbox refuses it: {refusal_of(reason)}")
        return receive_in_halves(receive, [], [refused], group=group)
    record = (arrivals or parked)[0].record
    raise ShieldTxError(
        f"the record {_place(record)} ({record.size} bytes) cannot be stored: "
        f"{refusal_of(reason)}; its partition waits until the database takes it, or the group's "
        "offset is set after it"
    ) from reason


def may_be_its_fault(error: _Failure) -> bool:
    """Whether the rows may cause an error, so that fewer of them, or none of them, may succeed."""
    if isinstance(error, (MemoryError, UnicodeEncodeError)):
        return True
    return not error.connection_invalidated and (is_refused(error) or _state(error) in _TOO_MUCH)


def is_refused(error: _Failure) -> bool:
    """Whether the server or its driver refuses the content of the rows.

    A driver raises UnicodeEncodeError for letters that the encoding of the database does not have.
    """
    if isinstance(error, UnicodeEncodeError):
        return True
    state = _state(error)
    if state is None:  # from the driver itself, or SQLite
        return isinstance(error, (DataError, IntegrityError))
    return state.startswith(_REFUSED)


def refusal_of(error: _Failure) -> str:
    """Return the reason why a row is refused, without any content of the row."""
    if isinstance(error, UnicodeEncodeError):
        return f"the encoding of the database, {error.encoding}, does not have all letters"
    return reason_of(error)


def _state(error: _Failure) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _place(record: ReceivedRecord) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"


def _both(first: Receipt, second: Receipt) -> Receipt:
    return Receipt(
        fresh=[*first.fresh, *second.fresh],
        started=[*first.started, *second.started],
        duplicates=first.duplicates + second.duplicates,
        parked=[*first.parked, *second.parked],
    )
