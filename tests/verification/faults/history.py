"""The history of status changes, recorded by triggers of the tests on shieldtx's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine, text

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, Lifecycle, OutboxStatus
from tests.support.transitions import is_unrepaired

_TABLE = """
CREATE TABLE bank_history (
    n bigint GENERATED ALWAYS AS IDENTITY,
    place text NOT NULL, id uuid NOT NULL, before text, after text);

CREATE FUNCTION bank_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A new lease is a transition, too: PROCESSING to PROCESSING. The token of a check is none.
    IF TG_OP <> 'UPDATE' OR OLD.status <> NEW.status
       OR NEW.status <> 'HALF'
          AND NEW.lease_token IS DISTINCT FROM OLD.lease_token AND NEW.lease_token IS NOT NULL THEN
        INSERT INTO bank_history (place, id, before, after) VALUES (
            TG_TABLE_NAME, coalesce(NEW.event_id, OLD.event_id), OLD.status, NEW.status);
    END IF;
    RETURN NULL;
END $$;
"""

_TRIGGER = """
CREATE TRIGGER bank_history AFTER INSERT OR UPDATE OR DELETE ON {table}
FOR EACH ROW EXECUTE FUNCTION bank_note();
"""

LIFECYCLES: dict[str, Lifecycle[OutboxStatus] | Lifecycle[InboxStatus]] = {
    "shield_outbox": OUTBOX,
    "shield_inbox": INBOX,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A change of status of some rows; None where they are inserted or purged."""

    place: str
    before: str | None
    after: str | None
    rows: int

    @property
    def legal(self) -> bool:
        """Return whether the lifecycle has this arrow; only rows of certain states are purged.

        A change that only a repair may make is legal if its audit shows it: `illegal_steps` omits
        it.
        """
        lifecycle = LIFECYCLES[self.place]
        if self.after is None:
            return self.before in lifecycle.purgeable
        return is_unrepaired(lifecycle, self.before, self.after)

    def __str__(self) -> str:
        return f"{self.rows} x {self.place} {self.before} -> {self.after}"


def install(engine: Engine) -> None:
    """Start to record the history of a database."""
    with engine.begin() as connection:
        connection.exec_driver_sql(_TABLE)
        for table in LIFECYCLES:
            connection.exec_driver_sql(_TRIGGER.format(table=table))


def illegal_steps(engine: Engine) -> Sequence[Step]:
    """Return every kind of change that no lifecycle allows."""
    query = text("""
        SELECT place, before, after, count(*) FROM bank_history h
        WHERE NOT (before = 'PROCESSED' AND after = 'INIT' AND EXISTS (
            SELECT FROM shield_audit a WHERE strpos(a.detail, h.id::text) > 0))
        GROUP BY 1, 2, 3""")
    with engine.connect() as connection:
        steps = [
            Step(place=place, before=before, after=after, rows=rows)
            for place, before, after, rows in connection.execute(query)
        ]
    return [step for step in steps if not step.legal]
