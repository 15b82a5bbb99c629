"""The port of paused handlers in memory, like the SQL store, and a check of those who use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.ports.pauses import ALL, BREAKER, HandlerKey, Pause, ProbeClaim

if TYPE_CHECKING:
    from tests.verification.simulation.database import Database, InboxRow


@dataclass(slots=True)
class PauseRow:
    """A row of the table of paused handlers; times are seconds of the database's clock."""

    paused_at: float
    by: str
    reason: str
    probe_at: float | None = None
    probes: int = 0
    token: UUID | None = None
    claimed_by: str = ""
    ends_at_claim: int = 0
    effects_at_claim: int = 0
    """How many events of the handler the claiming process had ended, and applied."""
    was_claimed_in_calm: bool = False


@dataclass(slots=True)
class Pauses:
    """The table of paused handlers of one service, and what its processes did wrong with it."""

    rows: dict[tuple[str, str, str], PauseRow] = field(default_factory=dict)
    known: dict[str, Sequence[tuple[str, Pause]]] = field(default_factory=dict)
    """The last answer that each process has read, with the group."""
    ends: Counter[tuple[str, str, HandlerKey]] = field(default_factory=Counter)
    effects: Counter[tuple[str, str, HandlerKey]] = field(default_factory=Counter)
    """How many events of a handler each process has ended, and of those how many applied."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """The violated invariant, and where."""

    def note_end(self, process: str, row: InboxRow, target: InboxStatus) -> None:
        """Count an event that a process has ended."""
        of_handler = process, row.group, (row.envelope.type, row.envelope.kind)
        self.ends[of_handler] += 1
        # A rollback may have had nothing to compensate: its handler was not called.
        is_commit = row.envelope.kind is TxKind.COMMIT
        self.effects[of_handler] += is_commit and target is InboxStatus.PROCESSED

    def note_attempt(self, process: str, group: str, envelope: Envelope, what: str) -> None:
        """Note a problem if a process starts or counts an attempt of a handler known as paused."""
        if self.knows(process, group, (envelope.type, envelope.kind)):
            number = envelope.id.int & 0xFFFF
            self.problems.append(("I5", f"{what} {number} of a paused handler in {group}"))

    def knows(self, process: str, group: str, handler: HandlerKey) -> bool:
        """Whether a process has last read that a handler is paused."""
        return any(g == group and p.covers(handler) for g, p in self.known.get(process, ()))


class MemoryPauseStore:
    """Pauses handlers for breakers (the port PauseStore); `by` is the process."""

    def __init__(
        self, database: Database, *, by: str = "", is_calm: Callable[[], bool] = lambda: False
    ) -> None:
        self._database = database
        self._by = by
        self._is_calm = is_calm

    def pauses(self, group: str) -> Sequence[Pause]:
        """Return the pauses of a group."""
        db = self._database
        return [
            Pause(
                event_type=event_type,
                kind=kind,
                since=db.clock.datetime(),
                by=row.by,
                reason=row.reason,
                has_probes=row.probe_at is not None,
                is_probe_due=row.probe_at is not None and row.probe_at <= db.now,
                probes=row.probes,
            )
            for (of_group, event_type, kind), row in sorted(db.pauses.rows.items())
            if of_group == group
        ]

    def trip(self, group: str, handler: HandlerKey, *, reason: str, first_probe: timedelta) -> bool:
        """Pause a handler, and plan its first probe."""
        now, rows = self._database.now, self._database.pauses.rows
        if (key := _key(group, handler)) in rows:
            return False
        rows[key] = PauseRow(now, BREAKER, reason, now + first_probe.total_seconds())
        return True

    def pause(self, group: str, event_type: str = ALL, *, reason: str) -> None:
        """Pause a type, or all, as an operator does."""
        self._database.pauses.rows[group, event_type, ALL] = PauseRow(
            self._database.now, "operator", reason
        )

    def resume(self, group: str, event_type: str = ALL) -> int:
        """End pauses, as an operator does."""
        rows = self._database.pauses.rows
        ended = [k for k in rows if k[0] == group and event_type in {k[1], ALL}]
        for key in ended:
            del rows[key]
        return len(ended)

    def waiting(self, group: str, handler: HandlerKey) -> int:
        """Count the unfinished events of a handler."""
        return sum(
            row.group == group
            and row.settled_at is None
            and (row.envelope.type, row.envelope.kind) == handler
            for row in self._database.inbox.values()
        )

    def has_succeeded(self, group: str, handler: HandlerKey, *, within: timedelta) -> bool:
        """Whether any worker has applied an event of a handler within this time."""
        since = self._database.now - within.total_seconds()
        return any(
            row.group == group
            and row.status is InboxStatus.PROCESSED
            # A rollback may have had nothing to compensate: its handler was not called.
            and (handler[1] is TxKind.COMMIT or row.compensated_id is not None)
            and row.settled_at is not None
            and row.settled_at > since
            and (row.envelope.type, row.envelope.kind) == handler
            for row in self._database.inbox.values()
        )

    def claim_probe(
        self, group: str, handler: HandlerKey, *, timeout: timedelta
    ) -> ProbeClaim | None:
        """Claim the due probe of a paused handler."""
        db = self._database
        row = db.pauses.rows.get(_key(group, handler))
        if row is None or row.probe_at is None or row.probe_at > db.now:
            return None
        if self._is_calm():
            effects = db.pauses.effects[row.claimed_by, group, handler]
            if row.was_claimed_in_calm and effects > row.effects_at_claim:
                db.pauses.problems.append(("I8", f"a good probe did not resume {handler}"))
            row.was_claimed_in_calm = True
        row.token = token = db.next_token()
        row.probes += 1
        row.probe_at = db.now + timeout.total_seconds()
        of_handler = self._by, group, handler
        row.claimed_by = self._by
        row.ends_at_claim = db.pauses.ends[of_handler]
        row.effects_at_claim = db.pauses.effects[of_handler]
        return ProbeClaim(group, handler, token, row.probes)

    def settle_probe(self, claim: ProbeClaim, *, delay: timedelta, reason: str | None) -> bool:
        """Plan the next probe, and record why this one failed."""
        row = self._claimed(claim)
        if row is None:
            return False
        row.token = None
        row.probe_at = self._database.now + delay.total_seconds()
        if reason is None:
            row.probes -= 1
        else:
            row.reason = reason
        return True

    def close(self, claim: ProbeClaim) -> bool:
        """End the pause after a successful probe."""
        db, row = self._database, self._claimed(claim)
        if row is None:
            return False
        if db.pauses.ends[self._by, claim.group, claim.handler] == row.ends_at_claim:
            db.pauses.problems.append(("I5", f"{claim.handler} is resumed without a good probe"))
        del db.pauses.rows[_key(claim.group, claim.handler)]
        return True

    def _claimed(self, claim: ProbeClaim) -> PauseRow | None:
        row = self._database.pauses.rows.get(_key(claim.group, claim.handler))
        return row if row is not None and row.token == claim.token else None


class AnsweredPauses:
    """The port as a process sees it: notes the answers that it got, not those that were lost."""

    def __init__(self, port: Any, pauses: Pauses, *, process: str) -> None:
        self._port = port
        self._pauses = pauses
        self._process = process

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a call whose answer is not noted."""
        return getattr(self._port, name)  # type: ignore[no-any-return]

    def pauses(self, group: str) -> Sequence[Pause]:
        """Return the pauses of a group, which the process knows from now on."""
        found = self._port.pauses(group)
        self._pauses.known[self._process] = [(group, pause) for pause in found]
        return found  # type: ignore[no-any-return]


def _key(group: str, handler: HandlerKey) -> tuple[str, str, str]:
    return group, handler[0], handler[1].value
