"""The unsettled rows that a relay has claimed: written back in order, withdrawn, renamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from shieldtx.domain.events import Envelope
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.states import TxKind
from shieldtx.errors import LocalRollbackFailed
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from shieldtx.ports.relay import Claim, ClaimedEvent, Settlement
from shieldtx.relay.in_flight import InFlight
from shieldtx.relay.outcome import decide_outcomes
from shieldtx.relay.permanent_failure import PermanentFailures
from shieldtx.relay.result import RelayResult
from shieldtx.relay.sender import ClaimedBatch
from tests.support.log_records import fields_of, logged

LEASE = timedelta(seconds=30)
NO_RETRY = RetryPolicy(max_attempts=1)
DONE, REJECTED, UNSENT = (
    DeliveryOutcome.ACKNOWLEDGED,
    DeliveryOutcome.REJECTED,
    DeliveryOutcome.UNSENT,
)


class Outbox:
    """An outbox store that records its calls, and fails while `error` is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.settlements: list[Settlement] = []
        self.error: BaseException | None = None
        self.kept = True

    def claim(self, *, relay: str, limit: int) -> Claim:
        self._note("claim", relay, limit)
        return batch_of(limit).claim

    def settle(self, token: UUID, settlement: Settlement) -> int:
        self._note("settle", token)
        self.settlements.append(settlement)
        return len(settlement) if self.kept else 0

    def fail(self, token: UUID, _: UUID, **__: Any) -> bool:
        self._note("fail", token)
        return self.kept

    def withdraw(self, *, relay: str, renamed: str) -> int:
        self._note("withdraw", relay, renamed)
        return 0

    def _note(self, *call: Any) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(call)


def event() -> ClaimedEvent:
    envelope = Envelope(
        id=uuid4(),
        source="orders",
        type="order.placed",
        topic="orders",
        kind=TxKind.COMMIT,
        key="k",
        payload="{}",
        time=datetime.now(UTC),
    )
    return ClaimedEvent(envelope, 1, unconfirmed=False)


def batch_of(size: int) -> ClaimedBatch:
    events = [event() for _ in range(size)]
    return ClaimedBatch(Claim(token=uuid4(), events=events, lease_left=LEASE), 0.0)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def in_flight(outbox: Outbox) -> InFlight:
    failures = PermanentFailures(
        store=outbox,  # type: ignore[arg-type]
        retry_of=lambda event_type: NO_RETRY,
        local_rollbacks={},
        knows=lambda envelope: True,
    )
    return InFlight(relay="one", store=outbox, failures=failures)  # type: ignore[arg-type]


def send(in_flight: InFlight, *outcomes: DeliveryOutcome, outage: str = "") -> UUID:
    """Add the write-backs of a batch with these outcomes; return its token."""
    claim = batch_of(len(outcomes)).claim
    deliveries = [Delivery(outcome=outcome) for outcome in outcomes]
    outcome = decide_outcomes(claim, deliveries, lambda event_type: NO_RETRY)
    in_flight.add(outcome, outage=outage)
    return claim.token


def test_write_backs_are_made_in_their_order(in_flight: InFlight, outbox: Outbox) -> None:
    first = send(in_flight, DONE, REJECTED)
    second = send(in_flight, DONE, UNSENT, outage="no broker")
    assert not in_flight.is_settled
    done = in_flight.settle()
    assert outbox.calls == [("settle", first), ("fail", first), ("settle", second)]
    assert (done.claimed, done.published, done.failed, done.released) == (4, 2, 1, 1)
    assert done.outage == "no broker"
    assert in_flight.is_settled
    assert in_flight.settle() == RelayResult()


@pytest.mark.parametrize(("kept", "action"), [(True, "event_failed"), (False, "events_taken_over")])
def test_permanent_failure_is_logged_as_it_was_written(
    in_flight: InFlight,
    outbox: Outbox,
    caplog: pytest.LogCaptureFixture,
    kept: bool,
    action: str,
) -> None:
    outbox.kept = kept
    send(in_flight, REJECTED)
    in_flight.settle()
    assert [fields_of(record)["action"] for record in caplog.records] == [action]


def test_failure_without_a_confirmation_is_logged(
    in_flight: InFlight, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    send(in_flight, REJECTED)
    outbox.error = OSError("the response to COMMIT is lost")
    for _ in range(2):
        with pytest.raises(OSError, match="lost"):
            in_flight.settle()
    outbox.error, outbox.kept = None, False
    in_flight.settle()
    send(in_flight, REJECTED)
    in_flight.settle()
    assert len(logged(caplog.records, "event_failure_unconfirmed")) == 1
    assert len(logged(caplog.records, "events_taken_over")) == 2
    assert logged(caplog.records, "event_failed") == []


@pytest.mark.parametrize("kept", [True, False])
def test_local_rollback_whose_commit_is_unconfirmed_is_logged(
    in_flight: InFlight, outbox: Outbox, caplog: pytest.LogCaptureFixture, kept: bool
) -> None:
    def fail(*_: Any, **__: Any) -> bool:
        raise LocalRollbackFailed("the response to COMMIT is lost")

    outbox.fail, outbox.kept = fail, kept  # type: ignore[method-assign]
    send(in_flight, REJECTED)
    in_flight.settle()
    assert len(logged(caplog.records, "local_rollback_failed")) == 1
    assert len(logged(caplog.records, "event_failure_unconfirmed")) == int(not kept)


def test_events_that_were_taken_over_are_named(
    in_flight: InFlight, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.kept = False
    send(in_flight, DONE, REJECTED, UNSENT)
    in_flight.settle()
    (lost,) = logged(caplog.records, "events_taken_over")
    (settlement,) = outbox.settlements
    ids = list(map(str, [*settlement.processed, *settlement.unsent]))
    assert lost["count"] == len(lost["event_ids"]) == 3  # type: ignore[arg-type]
    assert lost["event_ids"][:2] == ids  # type: ignore[index]


def test_failed_write_back_stays_first(in_flight: InFlight, outbox: Outbox) -> None:
    first, second = send(in_flight, DONE), send(in_flight, DONE)
    outbox.error = OSError("the database is away")
    with pytest.raises(OSError, match="away"):
        in_flight.settle()
    outbox.error = None
    assert in_flight.settle().published == 2
    assert outbox.calls == [("settle", first), ("settle", second)]


def test_ambiguous_claim_is_withdrawn_after_the_write_backs(
    in_flight: InFlight, outbox: Outbox
) -> None:
    sent = send(in_flight, DONE)
    outbox.error = OSError("the response is lost")
    with pytest.raises(OSError, match="lost"):
        in_flight.claim(10)
    outbox.error = None
    in_flight.settle()
    assert outbox.calls == [("settle", sent), ("withdraw", "one", "one+1")]
    assert in_flight.name == "one+1"
    in_flight.claim(10)
    assert outbox.calls[-1] == ("claim", "one+1", 10)


def test_interruption_makes_claims_and_prefetch_ambiguous(
    in_flight: InFlight, outbox: Outbox
) -> None:
    in_flight.keep_ahead(batch_of(3))
    with pytest.raises(SystemExit), in_flight.ambiguous_if_abandoned():
        raise SystemExit
    assert in_flight.take_ahead() is None
    in_flight.settle()
    assert outbox.calls == [("withdraw", "one", "one+1")]


def test_ordinary_error_is_not_an_interruption(in_flight: InFlight, outbox: Outbox) -> None:
    with pytest.raises(OSError, match="away"), in_flight.ambiguous_if_abandoned():
        raise OSError("the database is away")
    in_flight.settle()
    assert outbox.calls == []


def test_failed_withdrawal_is_repeated(in_flight: InFlight, outbox: Outbox) -> None:
    outbox.error = OSError("the response is lost")
    with pytest.raises(OSError, match="lost"):
        in_flight.claim(10)
    with pytest.raises(OSError, match="lost"):
        in_flight.settle()
    assert in_flight.name == "one"
    outbox.error = None
    in_flight.settle()
    assert outbox.calls == [("withdraw", "one", "one+1")]


def test_former_names_are_withdrawn_after_the_ambiguous_claim(
    in_flight: InFlight, outbox: Outbox
) -> None:
    in_flight.withdraw()
    in_flight.withdraw_former("one")
    in_flight.settle()
    assert outbox.calls == [("withdraw", "one", "one+1"), ("withdraw", "one", "one+1")]
    in_flight.settle()
    assert len(outbox.calls) == 2


def test_batch_ahead_is_released_unsent(in_flight: InFlight, outbox: Outbox) -> None:
    assert not in_flight.release_ahead("no reason")
    batch = batch_of(3)
    in_flight.keep_ahead(batch)
    assert in_flight.release_ahead("the broker asks for a pause")
    assert in_flight.take_ahead() is None
    done = in_flight.settle()
    assert (done.claimed, done.released) == (3, 3)
    assert outbox.calls == [("settle", batch.claim.token)]


def test_results_add_up_and_the_later_backlog_counts() -> None:
    first = RelayResult(claimed=3, published=2, lost=1, outage="no broker", ahead=5, backlog=True)
    later = RelayResult(claimed=1, retried=1, outage="paused", slowed=0.5)
    assert first.then(later) == RelayResult(
        claimed=4, published=2, retried=1, lost=1, outage="no broker", slowed=0.5
    )
    assert first.then(replace(later, backlog=True)).backlog


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_interrupted_release_forgets_no_batch(
    in_flight: InFlight, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    batch = batch_of(2)
    in_flight.keep_ahead(batch)

    def broken(**_: Any) -> Settlement:
        raise error

    monkeypatch.setattr("shieldtx.relay.in_flight.Settlement", broken)
    with pytest.raises(error), in_flight.ambiguous_if_abandoned():
        in_flight.release_ahead("the shards are for another relay")
    if error is KeyboardInterrupt:
        assert not in_flight.is_settled, "it is withdrawn before the next claim"
    else:
        assert in_flight.take_ahead() is batch


def test_batch_of_an_interrupted_release_is_withdrawn_if_unsent(
    in_flight: InFlight, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flight.keep_ahead(in_flight.claim(2))

    def broken(**_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as cut, ended_by(in_flight, MemoryError):
        cut.setattr("shieldtx.relay.in_flight.PendingSettlement", broken)
        in_flight.release_ahead("the shards are for another relay")
    with ended_by(in_flight, RuntimeError):
        assert in_flight.take_ahead() is not None
        raise RuntimeError("can't start new thread")
    in_flight.settle()
    assert outbox.calls[1:] == [("withdraw", "one", "one+1")]


@contextmanager
def ended_by(in_flight: InFlight, error: type[Exception]) -> Iterator[None]:
    """Expect a pass that ends with an error."""
    with pytest.raises(error), in_flight.ambiguous_if_abandoned():
        yield


def test_unsent_batch_of_a_failed_pass_is_withdrawn(in_flight: InFlight, outbox: Outbox) -> None:
    """The batch ahead is withdrawn with it."""
    sent = send(in_flight, DONE)
    in_flight.keep_ahead(in_flight.claim(2))
    in_flight.claim(3)
    with pytest.raises(RuntimeError), in_flight.ambiguous_if_abandoned():
        raise RuntimeError("can't start new thread")
    assert in_flight.take_ahead() is None
    in_flight.settle()
    assert outbox.calls[2:] == [("settle", sent), ("withdraw", "one", "one+1")]


def test_batch_that_may_be_sent_is_not_withdrawn(in_flight: InFlight, outbox: Outbox) -> None:
    batch = in_flight.claim(3)
    in_flight.begin_send(batch)
    in_flight.keep_ahead(in_flight.claim(2))
    with pytest.raises(RuntimeError), in_flight.ambiguous_if_abandoned():
        raise RuntimeError
    assert in_flight.take_ahead() is not None
    assert in_flight.is_sending
    assert not in_flight.is_settled
    in_flight.add_interrupted()
    assert not in_flight.is_sending
    done = in_flight.settle()
    assert outbox.calls[2:] == [("settle", batch.claim.token)]
    assert outbox.settlements[-1].unconfirmed == batch.event_ids
    assert done.released == 3


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_interrupted_claim_is_ambiguous_after_any_error(
    in_flight: InFlight, outbox: Outbox, error: type[BaseException]
) -> None:
    outbox.error = error("the response is lost")
    with pytest.raises(error):
        in_flight.claim(3)
    outbox.error = None
    in_flight.settle()
    assert outbox.calls == [("withdraw", "one", "one+1")]
