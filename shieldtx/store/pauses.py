"""The paused handlers of consumer groups: pauses by breakers and by operators, and their ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, Insert

from shieldtx.ports.pauses import ALL, HandlerKey, Pause, ProbeClaim
from shieldtx.store.dialects import autocommit_engine, dialect_of
from shieldtx.store.statements import audit
from shieldtx.store.statements import pauses as sql
from shieldtx.store.tables import Tables


class SqlPauseStore:
    """Pauses handlers for breakers (the port PauseStore)."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._autocommit = autocommit_engine(engine)
        self._pauses = sql.pauses(tables, self._dialect)

    def pauses(self, group: str) -> Sequence[Pause]:
        """Return the pauses of a group."""
        with self._autocommit.begin() as connection:
            return [_pause_of(row) for row in connection.execute(self._pauses, {sql.GROUP: group})]

    def trip(self, group: str, handler: HandlerKey, *, reason: str, first_probe: timedelta) -> bool:
        """Pause a handler, and plan its first probe."""
        statement = sql.trip(
            self._tables,
            self._dialect,
            group=group,
            handler=handler,
            reason=reason,
            first_probe=first_probe,
        )
        with self._autocommit.begin() as connection:
            return connection.execute(statement).one_or_none() is not None

    def waiting(self, group: str, handler: HandlerKey) -> int:
        """Count the unfinished events of a handler."""
        statement = sql.waiting(self._tables, self._dialect, group=group, handler=handler)
        with self._autocommit.begin() as connection:
            count: int = connection.scalars(statement).one()
            return count

    def has_succeeded(self, group: str, handler: HandlerKey, *, within: timedelta) -> bool:
        """Whether any worker has applied an event of a handler within this time."""
        statement = sql.has_succeeded(
            self._tables, self._dialect, group=group, handler=handler, within=within
        )
        with self._autocommit.begin() as connection:
            return bool(connection.scalars(statement).one())

    def claim_probe(
        self, group: str, handler: HandlerKey, *, timeout: timedelta
    ) -> ProbeClaim | None:
        """Claim the due probe of a paused handler."""
        token = uuid4()
        statement = sql.claim_probe(
            self._tables,
            self._dialect,
            group=group,
            handler=handler,
            token=token,
            timeout=timeout,
        )
        with self._autocommit.begin() as connection:
            number = connection.scalars(statement).one_or_none()
        return None if number is None else ProbeClaim(group, handler, token, number)

    def settle_probe(self, claim: ProbeClaim, *, delay: timedelta, reason: str | None) -> bool:
        """Plan the next probe, and record why this one failed."""
        statement = sql.settle_probe(
            self._tables, self._dialect, **_named(claim), delay=delay, reason=reason
        )
        return self._changes(statement)

    def close(self, claim: ProbeClaim) -> bool:
        """End the pause after a successful probe."""
        return self._changes(sql.close(self._tables, self._dialect, **_named(claim)))

    def _changes(self, statement: Any) -> bool:
        with self._autocommit.begin() as connection:
            return connection.execute(statement).rowcount == 1


class SqlPauseAdmin:
    """Pauses and resumes handlers for operators, with audit entries."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)

    def pauses(self) -> Mapping[str, Sequence[Pause]]:
        """Return the pauses of all groups, by group."""
        found: dict[str, list[Pause]] = {}
        with self._engine.connect() as connection:
            for row in connection.execute(sql.every_pause(self._tables, self._dialect)):
                found.setdefault(row.consumer_group, []).append(_pause_of(row))
        return found

    def pause(self, group: str, event_type: str = ALL, *, who: str, reason: str) -> None:
        """Pause an event type of a group, or all its types, until an operator resumes them."""
        statement = sql.pause(
            self._tables, self._dialect, group=group, event_type=event_type, who=who, reason=reason
        )
        with self._engine.begin() as connection:
            connection.execute(statement)
            entry = self._entry("pause", f"{group}/{event_type}", who, {"reason": reason})
            connection.execute(entry)

    def resume(self, group: str, event_type: str = ALL, *, who: str, reason: str) -> int:
        """End the pauses of an event type, or of all types; return how many there were."""
        statement = sql.resume(self._tables, self._dialect, group=group, event_type=event_type)
        with self._engine.begin() as connection:
            ended = [dict(row) for row in connection.execute(statement).mappings()]
            if ended:
                detail = {"reason": reason, "ended": ended}
                entry = self._entry("resume", f"{group}/{event_type}", who, detail)
                connection.execute(entry)
        return len(ended)

    def _entry(self, action: str, subject: str, who: str, detail: dict[str, Any]) -> Insert:
        text = json.dumps(detail, ensure_ascii=False)
        return audit.record(
            self._tables, self._dialect, who=who, action=action, subject=subject, detail=text
        )


def _named(claim: ProbeClaim) -> dict[str, Any]:
    return {"group": claim.group, "handler": claim.handler, "token": claim.token}


def _pause_of(row: Any) -> Pause:
    return Pause(
        event_type=row.event_type,
        kind=row.tx_kind,
        since=row.paused_at,
        by=row.paused_by,
        reason=row.reason,
        has_probes=row.probe_at is not None,
        is_probe_due=bool(row.is_due),
        probes=row.probes,
    )
