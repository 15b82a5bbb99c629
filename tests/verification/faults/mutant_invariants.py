"""Invariants of mutants beyond the counts, and how a problem of a run names them."""

from __future__ import annotations

from tests.verification.faults import (
    consumer_mutant_runs,
    reconciliation_mutant_runs,
    size_mutant_runs,
    worker_mutant_runs,
)
from tests.verification.faults.banks import PRIVATE
from tests.verification.faults.scenarios import (
    breaker,
    connections,
    held_keys,
    rollback,
    takeovers,
    topics,
)

DRAIN = "drain"
"""The invariant that the backlog empties."""

REFUNDED = "refunded"
"""The invariant that a compensation that was DEAD succeeds when it is replayed."""

OWN_SESSIONS = "own sessions"
"""The invariant that no two processes share a session with the server."""

NO_CONFLICTS = "no conflicts"
"""The invariant that shieldtx's own transactions wait for each other and do not fail."""

NOT_PREPARED = "not prepared"
"""The invariant that no statement is prepared in the session of another client of a pooler."""

NO_ROWS_IN_REASONS = "no rows in reasons"
"""The invariant that the reason of a failure does not quote the contents of a table."""

LEASE_KEPT, EACH_PARKED, OUT_OF_LINE = "lease kept", "each parked", "out of line"
HUNG_UP, FOR_A_PERSON = "hung up", "for an operator"
"""Invariants of workers, of their resources, and of what waits for an operator."""

SHARDS_KEPT, ATTEMPT_KEPT = "shards kept", "attempt kept"
"""The invariants that nothing is taken from a worker of the same host that lives."""

NOT_BURNT = "not burnt"
"""The invariant that an attempt of a paused handler does not count."""

STRUCK_OUT = "struck out"
"""The invariant that a repair delivers no event that was taken back."""

UNDONE = "undone"
"""The invariant that a repair delivers no event that its service has undone."""

CLAIMED_BYTES, POLLED_BYTES, INSERTED_BYTES = "claimed bytes", "polled bytes", "inserted bytes"
"""The invariants that limit the bytes of a batch of large events."""

EXPECTED = {
    DRAIN: "the backlog empties",
    REFUNDED: consumer_mutant_runs.REFUNDED,
    OWN_SESSIONS: connections.OWN_SESSIONS,
    NO_CONFLICTS: connections.NO_CONFLICTS,
    NOT_PREPARED: connections.NOT_PREPARED,
    NO_ROWS_IN_REASONS: PRIVATE,
    CLAIMED_BYTES: size_mutant_runs.CLAIM,
    POLLED_BYTES: size_mutant_runs.POLL,
    INSERTED_BYTES: size_mutant_runs.STATEMENT,
    LEASE_KEPT: worker_mutant_runs.LEASE_KEPT,
    EACH_PARKED: topics.EACH_PARKED,
    OUT_OF_LINE: held_keys.OUT_OF_LINE,
    HUNG_UP: "after SIGHUP",
    FOR_A_PERSON: rollback.FOR_A_PERSON,
    SHARDS_KEPT: takeovers.SHARDS_KEPT,
    ATTEMPT_KEPT: takeovers.ATTEMPT_KEPT,
    NOT_BURNT: breaker.NOT_BURNT,
    STRUCK_OUT: reconciliation_mutant_runs.STRUCK_OUT,
    UNDONE: reconciliation_mutant_runs.UNDONE,
}
"""Expectations of runs beyond the counts: a problem names the one that was not met."""
