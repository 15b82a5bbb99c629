"""An incident that no relay and no consumer can notice, planted for the reconciliation to find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from sqlalchemy import TextClause, create_engine, text

from examples.retail.fleet import Fleet
from examples.retail.stage import Stage
from shieldtx import ShieldTxError
from shieldtx.reconcile.verdicts import Verdict

VANISHED: Final = 3
"""Events that are marked as sent, but were not."""
LEFT: Final = 2
"""Events under the lease of a relay that no longer exists."""
LATE: Final = VANISHED + LEFT
"""Baskets that come to the checkouts while no relay runs."""

PLANTED: Mapping[Verdict, int] = MappingProxyType(
    {
        Verdict.MISSING_DOWNSTREAM: VANISHED,
        Verdict.ABSENT_FROM_TOPIC: VANISHED,
        Verdict.STUCK: LEFT,
    }
)
"""The mismatches that the reconciliation has to find: exactly these."""


class NotPlanted(ShieldTxError):
    """The outbox did not contain the events that the incident was to affect."""


def plant(stage: Stage, fleet: Fleet, say: Callable[[str], None], *, after: int) -> None:
    """Take a few more baskets through after the given number, and tamper with their rows.

    No process of the services may run. Raises NotPlanted.
    """
    arguments = ("--baskets", str(after + LATE), "--after", str(after))
    fleet.module("late checkout", "orders", "examples.retail.checkout", *arguments)
    fleet.finish("late checkout")
    engine = create_engine(stage.url("orders"))
    try:
        with engine.begin() as connection:
            for statement, rows in ((_VANISH, VANISHED), (_LEAVE, LEFT)):
                changed = connection.execute(statement, {"rows": rows}).rowcount
                if changed != rows:
                    raise NotPlanted(f"{changed} events waited to be sent, not {rows}")
    finally:
        engine.dispose()
    say(
        f"[bold yellow]an incident:[/] of {LATE} more orders, {VANISHED} are marked as sent "
        "and never were, as if the broker had"
    )
    say(
        f"            lost what it acknowledged; {LEFT} are in the hands of a relay that died, "
        "and no other one came"
    )


def _on_waiting(change: str) -> TextClause:
    return text(f"""
        UPDATE shield_outbox SET attempts = 1, {change}
        WHERE event_id IN (
            SELECT event_id FROM shield_outbox WHERE status = 'INIT' ORDER BY seq LIMIT :rows
        )
    """)  # noqa: S608  the changes are those below


_VANISH = _on_waiting("status = 'PROCESSED', settled_at = clock_timestamp()")
_LEAVE = _on_waiting(
    "status = 'PROCESSING', lease_token = gen_random_uuid(), lease_until = clock_timestamp()"
)
