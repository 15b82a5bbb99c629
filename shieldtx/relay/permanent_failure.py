"""Permanent failure of an event: its FAILED status and its local rollback, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.log_fields import event_fields
from shieldtx.domain.reasons import WITH_TRACEBACK, loggable
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.states import TxKind
from shieldtx.errors import LocalRollbackFailed
from shieldtx.ports.relay import LocalRollback, RelayStore, Retry, Settlement
from shieldtx.relay.outcome import PermanentFailure
from shieldtx.relay.result import RelayResult

log = logging.getLogger(__name__)


class PermanentFailures:
    """Writes permanent failures back; an event that cannot fail here waits for another attempt."""

    def __init__(
        self,
        *,
        store: RelayStore,
        retry_of: Callable[[str], RetryPolicy],
        local_rollbacks: Mapping[str, LocalRollback],
        knows: Callable[[Envelope], bool],
    ) -> None:
        self._store = store
        self._retry_of = retry_of
        self._local_rollbacks = local_rollbacks
        self._knows = knows
        self._unconfirmed: UUID | None = None
        """The event whose FAILED status may be written: the database did not confirm it."""

    def record(self, failure: PermanentFailure) -> RelayResult:
        """Fail an event; where its local rollback raises or its type is unknown, retry it later.

        Errors of the database are raised; the failure can then be recorded again.
        """
        envelope = failure.event.envelope
        if not self._knows(envelope):
            return self._retry_unknown(failure)
        undo, reason = self._undo_of(failure)
        # An error leaves the name here: the next call then knows that the status may be written.
        is_repeated, self._unconfirmed = self._unconfirmed == envelope.id, envelope.id
        try:
            kept = self._store.fail(
                failure.token,
                envelope.id,
                reason=reason,
                local_rollback=None if undo is None else lambda session: undo(session, envelope),
            )
        except LocalRollbackFailed as error:
            result = self._retry_rollback(failure, f"{reason}; {error}", error)
            # The row was locked before, so the COMMIT may have had no response.
            is_unconfirmed = result.lost > 0
        else:
            result = RelayResult(claimed=1, failed=int(kept), lost=int(not kept))
            is_unconfirmed = is_repeated and not kept
        self._unconfirmed = None
        if result.failed:
            log.error(
                "event failed permanently",
                extra={"action": "event_failed", **_fields(failure, reason)},
            )
        elif is_unconfirmed:
            log.error(
                "event may have failed permanently",
                extra={"action": "event_failure_unconfirmed", **_fields(failure, reason)},
            )
        return result

    def _undo_of(self, failure: PermanentFailure) -> tuple[LocalRollback | None, str]:
        """Return the local rollback to run, and the reason of the failure."""
        envelope, reason = failure.event.envelope, failure.reason
        # A failed rollback event undoes nothing here: its original is another service's event, or
        # was delivered.
        is_commit = envelope.kind is TxKind.COMMIT
        undo = self._local_rollbacks.get(envelope.type) if is_commit else None
        if not failure.event.unconfirmed:
            return undo, reason
        # A consumer may have the event: this side alone must not be rolled back.
        return None, (
            f"{reason}; an earlier attempt was never confirmed, so the event may have been "
            "delivered: the local rollback was withheld for an operator to decide"
        )

    def _retry_rollback(
        self, failure: PermanentFailure, reason: str, error: LocalRollbackFailed
    ) -> RelayResult:
        """Retry an event whose local rollback has raised."""
        log.error(
            "local rollback failed",
            exc_info=loggable(error),
            extra={
                "action": "local_rollback_failed",
                **event_fields(failure.event.envelope),
                **WITH_TRACEBACK,
            },
        )
        return self._retry(failure.token, failure.event.envelope, reason)

    def _retry_unknown(self, failure: PermanentFailure) -> RelayResult:
        """Retry an event of an unknown type until a release that declares the type claims it."""
        envelope, reason = failure.event.envelope, failure.reason
        why = f"this release does not declare the event type {envelope.type!r}, so it cannot fail"
        log.warning(
            "event type is not declared",
            extra={"action": "event_type_unknown", **event_fields(envelope), "reason": reason},
        )
        return self._retry(failure.token, envelope, f"{reason}; {why}")

    def _retry(self, token: UUID, envelope: Envelope, reason: str) -> RelayResult:
        delay = self._retry_of(envelope.type).longest
        retry = Retry(event_id=envelope.id, delay=delay, reason=reason)
        settlement = Settlement(retries=[retry])
        return RelayResult.of(settlement, kept=self._store.settle(token, settlement))


def _fields(failure: PermanentFailure, reason: str) -> dict[str, object]:
    """Return the log fields of a permanent failure."""
    envelope = failure.event.envelope
    return {
        **event_fields(envelope),
        "topic": envelope.topic,
        "attempt": failure.event.attempts,
        "reason": reason,
    }
