"""The bounds that are explored, and for each mutant the smallest ones that show its defect."""

from __future__ import annotations

from typing import Final

from tests.verification.model import invariants
from tests.verification.model.bounds import Bounds, Mutant

BOTH: Final = ("stock", "billing")
_MUTUAL: Final = {"downstream": BOTH, "compensating": BOTH, "faults": 0}
_PARKED: Final = {
    "downstream": BOTH,
    "compensating": ("stock",),
    "parks": ("stock",),
    "faults": 0,
    "decisions": 1,
}
_FOREIGN: Final = {
    "events": 1,
    "relays": 1,
    "workers": 2,
    "downstream": BOTH,
    "compensating": ("stock",),
    "attempts": 1,
    "faults": 0,
    "purges": True,
}

WORLDS: Final = (
    # All processes together, with one fault.
    Bounds(events=2, relays=2, workers=2, faults=1),
    # One event and two faults: a zombie and its successor, a lost answer and a crash, ...
    Bounds(events=1, relays=2, workers=2, faults=2, send_attempts=2),
    # A group with two workers compensates what another one refuses: its topics come in both orders.
    Bounds(**(_FOREIGN | {"attempts": 2})),
    # A rollback waits, is retried or DEAD while the purge runs.
    Bounds(events=1, relays=1, workers=1, faults=2, attempts=2, purges=True),
    # Two services downstream: each takes back what the other refuses, early, late or never applied.
    Bounds(events=1, relays=1, workers=1, **_MUTUAL),
    # The same two services with a single attempt: each refusal is final at once.
    Bounds(events=1, relays=1, workers=1, attempts=1, **_MUTUAL),
    # One service parks what the other one refuses, and an operator decides before or after that.
    Bounds(events=1, relays=1, workers=1, attempts=1, **_PARKED),
    # A key's two events, of which one may be parked, replayed, and parked again.
    Bounds(events=2, relays=1, workers=1, faults=0, attempts=2, parks=("stock",), decisions=2),
    # A key's two events, of which the broker refuses one.
    Bounds(events=2, relays=1, workers=1, faults=1, attempts=1, send_attempts=2),
)

_SMALL: Final = {"events": 1, "relays": 1, "workers": 1, "faults": 1, "attempts": 1}


def _broken(mutant: Mutant, **larger: object) -> Bounds:
    return Bounds(**(_SMALL | larger), mutant=mutant)


_M = Mutant
MUTANTS: Final = {
    _broken(_M.SENDS_BEFORE_COMMIT): invariants.NO_GHOST,
    _broken(_M.SETTLES_WITHOUT_TOKEN, relays=2, faults=2): invariants.ONE_OUTCOME,
    _broken(_M.FORGETS_WRITE_BACKS, events=2, faults=2): invariants.ORDER,
    _broken(_M.FORGETS_LOST_CLAIM, events=2): invariants.ORDER,
    _broken(_M.KEEPS_ITS_NAME, events=2): invariants.ORDER,
    _broken(_M.RESTARTS_UNDER_ITS_NAME, events=2): invariants.ORDER,
    _broken(_M.PROCESSED_WHEN_AMBIGUOUS): invariants.NO_LOSS,
    _broken(_M.TAKES_OVER_WITHOUT_DOUBT, faults=2): invariants.ONE_OUTCOME,
    _broken(_M.SENDS_PAST_A_RETRY, events=2, send_attempts=2): invariants.ORDER,
    _broken(_M.OFFSET_BEFORE_INSERT): invariants.NO_LOSS,
    _broken(_M.INSERTS_DUPLICATES): invariants.ONE_EFFECT,
    _broken(_M.HANDLES_PAST_A_RETRY, events=2, faults=0, attempts=2): invariants.ORDER,
    _broken(_M.WAITS_IN_A_CIRCLE, **_MUTUAL): invariants.DRAIN,
    _broken(_M.COUNTS_ATTEMPT_AFTERWARDS): invariants.DRAIN,
    _broken(_M.APPLIES_UNGUARDED, workers=2, attempts=2): invariants.ONE_EFFECT,
    _broken(_M.ROLLBACK_IN_SECOND_TRANSACTION): invariants.ONE_OUTCOME,
    _broken(_M.COMPENSATES_EACH_ROLLBACK, **_MUTUAL): invariants.AUTHORITY,
    _broken(_M.LEAVES_NO_TOMBSTONE, **_MUTUAL): invariants.ONE_OUTCOME,
    _broken(_M.COMPENSATES_UNFINISHED, **_FOREIGN): invariants.ONE_OUTCOME,
    _broken(_M.LOOKS_ONCE, **_FOREIGN): invariants.ONE_OUTCOME,
    _broken(_M.PURGES_UNDER_A_ROLLBACK, faults=0, purges=True): invariants.ONE_OUTCOME,
    _broken(_M.PARKS_WITH_A_ROLLBACK, parks=("stock",)): invariants.ONE_OUTCOME,
    _broken(_M.LEAVES_A_PARKED_EVENT, **_PARKED): invariants.ONE_OUTCOME,
    _broken(_M.TRUSTS_ANY_ROLLBACK): invariants.AUTHORITY,
}
"""Each mutant with the invariant that catches it."""
