"""The bounds of an exploration, and the rule of the protocol that is broken on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mutant(StrEnum):
    """A rule of the protocol that is left out: an invariant has to detect this."""

    SENDS_BEFORE_COMMIT = "the application sends its event itself, before its transaction ends"
    SETTLES_WITHOUT_TOKEN = "a write-back does not ask whether the row still carries its token"
    FORGETS_WRITE_BACKS = "a relay claims again although its last claim is not settled"
    FORGETS_LOST_CLAIM = "a relay claims again although the answer of its last claim was lost"
    KEEPS_ITS_NAME = "a relay keeps its name, so that a claim it gave up still finds its shards"
    RESTARTS_UNDER_ITS_NAME = "a relay that starts again goes on with its leases"
    PROCESSED_WHEN_AMBIGUOUS = "a record whose acknowledgement was lost counts as sent"
    TAKES_OVER_WITHOUT_DOUBT = "a row taken from a dead relay is not marked as possibly sent"
    SENDS_PAST_A_RETRY = "an outbox row that waits for its retry holds back nothing"
    OFFSET_BEFORE_INSERT = "the offset is committed before the inbox row"
    INSERTS_DUPLICATES = "the inbox has no unique key"
    HANDLES_PAST_A_RETRY = "an inbox row that waits for its retry holds back nothing"
    WAITS_IN_A_CIRCLE = "a rollback that waits for its event holds that event back"
    COUNTS_ATTEMPT_AFTERWARDS = "the attempt is counted when the handler has ended"
    APPLIES_UNGUARDED = "the effect asks neither for the token nor for the status of its row"
    ROLLBACK_IN_SECOND_TRANSACTION = "the attempts are used up first, the rollback written later"
    COMPENSATES_EACH_ROLLBACK = "a compensation does not ask whether there was one before"
    LEAVES_NO_TOMBSTONE = "a rollback that comes before its event leaves no row"
    COMPENSATES_UNFINISHED = "a compensation does not ask whether its event has been handled yet"
    LOOKS_ONCE = "a rollback that found no event does not ask again whether the event has come"
    PURGES_UNDER_A_ROLLBACK = "the purge does not ask for rollbacks that are open or DEAD"
    PARKS_WITH_A_ROLLBACK = "the rollback of a parked event is written all the same"
    LEAVES_A_PARKED_EVENT = "a rollback leaves a parked event to the operators, who may replay it"
    TRUSTS_ANY_ROLLBACK = "a rollback record without a valid signature is taken for genuine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """The size of the world: every interleaving within it is tried."""

    events: int = 2
    """Events that the application writes in this order, all of one key."""
    relays: int = 2
    """Relays of the application's service; each other service has one."""
    downstream: tuple[str, ...] = ("stock",)
    """The groups that handle the events."""
    compensating: tuple[str, ...] = ()
    """The groups among them that compensate what another one refuses: a foreign event."""
    parks: tuple[str, ...] = ()
    """The groups whose handlers park an event at an unexpected error in its last attempt."""
    workers: int = 2
    """Workers of each group; a group that only refuses what another one compensates has one."""
    send_attempts: int = 1
    """Refusals of the broker after which a row fails."""
    attempts: int = 2
    """Attempts of a handler."""
    faults: int = 1
    """Faults in one run: crashes, pauses beyond a lease, lost answers, ..."""
    decisions: int = 0
    """Decisions of an operator about parked events in one run."""
    purges: bool = False
    """Whether events that have rollbacks are purged."""
    mutant: Mutant | None = None

    def __str__(self) -> str:
        """Return one line."""
        what = (
            f"{self.events} events, {self.relays} relays, {self.workers} workers of "
            f"{' and of '.join(self.downstream)}, {self.send_attempts}+{self.attempts} attempts, "
            f"{self.faults} faults"
        )
        if self.compensating:
            what += f", compensation by {' and '.join(self.compensating)}"
        if self.parks:
            parks = f"parked events of {' and '.join(self.parks)}"
            what += f", {parks} with {self.decisions} decisions"
        if self.purges:
            what += ", purges"
        return what if self.mutant is None else f"{what}; mutant: {self.mutant}"
