"""What is logged about failed attempts: after the row is written, and as it was written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from pydantic import TypeAdapter

from shieldtx.consumer.attempt_recorder import AttemptRecorder
from shieldtx.consumer.breaker import Breaker
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.consumer.handler import Handler
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope
from shieldtx.domain.retry import RetryPolicy, Then
from shieldtx.domain.states import TxKind
from shieldtx.errors import Refused
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from tests.support.log_records import fields_of, logged

ERROR = LookupError("no such shelf")


class Inbox:
    """An inbox whose rows have another owner, or whose database is away."""

    def __init__(self, kept: bool = True, error: Exception | None = None) -> None:
        self.kept = kept
        self.error = error

    def postpone(self, _: Attempt, **__: Any) -> bool:
        return self._answer()

    def defer(self, _: Attempt, **__: Any) -> bool:
        return self._answer()

    def give_up(self, _: Attempt, **__: Any) -> bool:
        return self._answer()

    def note(self, _: Any, **__: Any) -> None:
        self._answer()

    def _answer(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.kept


class Outbox:
    """Makes rollback events."""

    def rollback_of(self, envelope: Envelope, **_: Any) -> Envelope:
        return envelope


@pytest.fixture(autouse=True)
def _log_from_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shieldtx")


def recorder_of(inbox: Inbox, breaker: Breaker | None = None) -> AttemptRecorder:
    return EventProcessor(
        group=ConsumerGroup("stock", EventTypeRegistry()),
        store=inbox,  # type: ignore[arg-type]
        outbox=Outbox(),  # type: ignore[arg-type]
        breaker=breaker,
    ).recorder


def handler_of(*, attempts: int, then: Then = "rollback") -> Handler:
    return Handler(
        function=lambda session, event: None,
        topic="orders",
        payload=TypeAdapter(Any),
        retry=RetryPolicy(max_attempts=attempts, then=then),
    )


def attempt_of(kind: TxKind = TxKind.COMMIT, number: int = 1) -> Attempt:
    envelope = Envelope(
        id=uuid4(),
        source="shop",
        type="orders.placed",
        topic="orders",
        kind=kind,
        payload="{}",
        time=datetime.now(UTC),
    )
    return Attempt(envelope, "stock", number, uuid4())


def actions(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, str(fields_of(record)["action"])) for record in caplog.records]


def give_up(recorder: AttemptRecorder) -> AttemptOutcome:
    return recorder.fail(attempt_of(), handler_of(attempts=1), ERROR)


def refuse(recorder: AttemptRecorder) -> AttemptOutcome:
    return recorder.fail(attempt_of(), handler_of(attempts=9), Refused("sold out"))


def bury(recorder: AttemptRecorder) -> AttemptOutcome:
    return recorder.fail(attempt_of(TxKind.ROLLBACK), handler_of(attempts=1), ERROR)


def exhaust(recorder: AttemptRecorder) -> AttemptOutcome:
    return recorder.exhaust(attempt_of(), handler_of(attempts=1))


def park(recorder: AttemptRecorder) -> AttemptOutcome:
    return recorder.fail(attempt_of(), handler_of(attempts=1, then="park"), ERROR)


def park_exhausted(recorder: AttemptRecorder) -> AttemptOutcome:
    return recorder.exhaust(attempt_of(), handler_of(attempts=1, then="park"))


def refuse_where_it_parks(recorder: AttemptRecorder) -> AttemptOutcome:
    handler = handler_of(attempts=1, then="park")
    return recorder.fail(attempt_of(), handler, Refused("sold out"))


def bury_where_it_parks(recorder: AttemptRecorder) -> AttemptOutcome:
    handler = handler_of(attempts=1, then="park")
    return recorder.fail(attempt_of(TxKind.ROLLBACK), handler, ERROR)


FINAL = {
    give_up: ("ERROR", "event_given_up"),
    refuse: ("INFO", "event_refused"),
    bury: ("ERROR", "compensation_dead"),
    exhaust: ("ERROR", "event_given_up"),
    park: ("ERROR", "event_dead"),
    park_exhausted: ("ERROR", "event_dead"),
    refuse_where_it_parks: ("INFO", "event_refused"),
    bury_where_it_parks: ("ERROR", "compensation_dead"),
}


@pytest.mark.parametrize("end", FINAL, ids=lambda end: end.__name__)
class TestTerminalState:
    def test_written_state_is_logged_once(self, end: Callable[..., Any], caplog) -> None:
        assert end(recorder_of(Inbox())) in {AttemptOutcome.REFUSED, AttemptOutcome.DEAD}
        assert actions(caplog) == [FINAL[end]]

    def test_lost_row_is_logged_as_a_lost_attempt(self, end: Callable[..., Any], caplog) -> None:
        assert end(recorder_of(Inbox(kept=False))) is AttemptOutcome.LOST
        assert actions(caplog) == [("WARNING", "attempt_lost")]

    def test_database_error_is_logged_with_the_reason(self, end: Callable[..., Any], caplog):
        assert end(recorder_of(Inbox())) in {AttemptOutcome.REFUSED, AttemptOutcome.DEAD}
        written = caplog.records[0]
        caplog.clear()
        with pytest.raises(OSError, match="away"):
            end(recorder_of(Inbox(error=OSError("the database is away"))))
        assert actions(caplog) == [("WARNING", "attempt_not_recorded")]
        [record] = caplog.records
        assert fields_of(record)["reason"] == fields_of(written)["reason"]
        assert bool(record.exc_info) == bool(written.exc_info)


def test_lost_row_of_a_retry_is_logged_as_a_lost_attempt(caplog) -> None:
    recorder = recorder_of(Inbox(kept=False))
    assert recorder.fail(attempt_of(), handler_of(attempts=9), ERROR) is AttemptOutcome.LOST
    assert actions(caplog) == [("WARNING", "handler_failed"), ("WARNING", "attempt_lost")]


def test_retry_that_is_not_written_is_logged_with_its_reason(caplog) -> None:
    recorder = recorder_of(Inbox(error=OSError("the database is away")))
    with pytest.raises(OSError, match="away"):
        recorder.fail(attempt_of(), handler_of(attempts=9), ERROR)
    [fields] = logged(caplog.records, "attempt_not_recorded")
    assert fields["reason"] == "LookupError: no such shelf"


def test_traceback_of_a_retried_error_is_logged_once_a_minute(caplog) -> None:
    recorder, handler = recorder_of(Inbox()), handler_of(attempts=9)
    for number in (1, 2):
        recorder.fail(attempt_of(number=number), handler, ERROR)
    recorder.fail(attempt_of(), handler, ValueError("another class of error"))
    tracebacks = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert tracebacks == [LookupError, ValueError]
    assert len(logged(caplog.records, "attempt_failed")) == 3


def test_interruption_names_the_events_of_its_attempts(caplog) -> None:
    attempts = [attempt_of(), attempt_of()]
    recorder_of(Inbox(error=OSError("the database is away"))).interrupt(attempts, SystemExit(3))
    ids = [str(attempt.envelope.id) for attempt in attempts]
    for action in ("attempts_interrupted", "interruption_not_recorded"):
        (fields,) = logged(caplog.records, action)
        assert (fields["event_ids"], fields["event_types"]) == (ids, ["orders.placed"])


class NoPauses:
    """A table of paused handlers whose database is away."""

    def pauses(self, _: str) -> Any:
        raise ConnectionError("the database is away")


def test_error_is_logged_if_the_pauses_cannot_be_read(caplog) -> None:
    breaker = Breaker(group="stock", pauses=NoPauses())  # type: ignore[arg-type]
    with pytest.raises(ConnectionError, match="away"):
        recorder_of(Inbox(), breaker).fail(attempt_of(), handler_of(attempts=1), ERROR)
    [fields] = logged(caplog.records, "attempt_not_recorded")
    assert str(fields["reason"]).startswith("LookupError: no such shelf")
