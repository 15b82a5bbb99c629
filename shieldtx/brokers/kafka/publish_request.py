"""One publish call: the state of its records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kafka.errors import (
    AuthorizationError,
    InvalidRecordError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    UnsupportedForMessageFormatError,
)

from shieldtx.ports.broker import Delivery, DeliveryOutcome, Record

REJECTIONS: Final = (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    InvalidRecordError,
    PolicyViolationError,
)
"""Errors about a record, or about a batch because of one of its records.

Not InvalidTimestampError: a record has the time of the sending process, so that its clock is wrong,
and not the record.
"""
REFUSALS: Final = (AuthorizationError, InvalidTopicError, UnsupportedForMessageFormatError)
"""Errors that an operator may fix without changing the record."""

_MEANINGS: Final[Mapping[type[KafkaError], str]] = {
    MessageSizeTooLargeError: "the record is larger than max.message.bytes of its topic",
    RecordListTooLargeError: "the batch is larger than segment.bytes of its topic",
}


def text_of(error: KafkaError) -> str:
    """Return the name of an error with its meaning or details, without Kafka's number of it."""
    details = [str(each) for each in error.args if each is not None]
    text = _MEANINGS.get(type(error)) or ", ".join(details)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_ACKNOWLEDGED: Final = Delivery(outcome=DeliveryOutcome.ACKNOWLEDGED)


class PublishRequest:
    """The state of the records of one call, by their indexes."""

    def __init__(
        self, records: Sequence[Record], timeout: float, *, with_offsets: bool = False
    ) -> None:
        """Start the deadline; `with_offsets`: acknowledgements include partition and offset."""
        self.records = records
        self.deadline = time.monotonic() + timeout
        self.sizes: list[int] = []
        self.partitions: dict[int, int] = {}
        self.handed_over: set[int] = set()
        self.stopped = ""
        self._deferred = ""
        self._with_offsets = with_offsets
        self._too_late = f"not acknowledged within {timeout:.3g} s"
        self._ended: dict[int, Delivery] = {}
        self._rejected_keys: dict[tuple[str, bytes], int] = {}

    def left(self) -> float:
        """Return the seconds until the deadline."""
        return self.deadline - time.monotonic()

    def stop(self, reason: str) -> None:
        """Send nothing more in this call."""
        self.stopped = self.stopped or reason

    def defer_rest(self, reason: str) -> None:
        """Defer the records of this call that have not been passed to the client yet."""
        self._deferred = reason

    def reject(self, index: int, reason: str) -> None:
        """Reject a record permanently; later records of its key wait until that is committed."""
        self._ended[index] = Delivery(outcome=DeliveryOutcome.REJECTED, reason=reason)
        record = self.records[index]
        if record.key is not None:
            place = (record.topic, record.key)
            self._rejected_keys[place] = min(index, self._rejected_keys.get(place, index))

    def refuse(self, topic: str, reason: str) -> None:
        """Refuse all records of a topic that have no outcome yet."""
        refused = Delivery(outcome=DeliveryOutcome.REFUSED, reason=reason)
        for index, record in enumerate(self.records):
            if record.topic == topic:
                self._ended.setdefault(index, refused)

    def open(self) -> list[int]:
        """Return the records that may be sent."""
        return self.still_open(range(len(self.records)))

    def still_open(self, indexes: Iterable[int]) -> list[int]:
        """Return the records of `indexes` that may be sent."""
        waiting = [i for i in indexes if i not in self._ended and not self._is_blocked(i)]
        if self._deferred:
            waiting = [i for i in waiting if i in self.handed_over]
        if waiting and self.left() <= 0:
            self.stop(self._too_late)
        return [] if self.stopped else waiting

    def _is_blocked(self, index: int) -> bool:
        if not self._rejected_keys:
            return False
        record = self.records[index]
        if record.key is None:
            return False
        return self._rejected_keys.get((record.topic, record.key), index) < index

    def settle(self, indexes: Sequence[int], futures: Sequence[Any]) -> dict[int, KafkaError]:
        """Settle acknowledged records; return those whose error may concern another record."""
        condemned: dict[int, KafkaError] = {}
        for index, future in zip(indexes, futures, strict=False):
            if not future.is_done:
                self.stop(self._too_late)
            elif (error := future.exception) is None:
                self._ended[index] = (
                    self._there(index, future) if self._with_offsets else _ACKNOWLEDGED
                )
            elif isinstance(error, (*REJECTIONS, *REFUSALS)) or type(error) is KafkaError:
                condemned[index] = error
            else:
                self.stop(str(error))
        return condemned

    def deliveries(self) -> list[Delivery]:
        """Return the outcome of each record."""
        return [self._ended.get(i) or self._without_end(i) for i in range(len(self.records))]

    def _there(self, index: int, end: Any) -> Delivery:
        offset = end.offset
        return Delivery(
            outcome=DeliveryOutcome.ACKNOWLEDGED,
            partition=self.partitions.get(index),
            offset=offset if offset >= 0 else None,
        )

    def _without_end(self, index: int) -> Delivery:
        if self._is_blocked(index):
            reason = "deferred: an earlier record of its key was rejected"
            return Delivery(outcome=DeliveryOutcome.DEFERRED, reason=reason)
        if self._deferred and not self.stopped:
            return Delivery(outcome=DeliveryOutcome.DEFERRED, reason=self._deferred)
        outcome = (
            DeliveryOutcome.UNCONFIRMED if index in self.handed_over else DeliveryOutcome.UNSENT
        )
        return Delivery(outcome=outcome, reason=self.stopped)
