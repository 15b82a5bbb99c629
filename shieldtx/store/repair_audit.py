"""The audit entry of a repair."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import Insert

from shieldtx.ports.repair import Note, RepairAction
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements import audit
from shieldtx.store.tables import Tables

AUDIT_ACTION: Final = "repair"


def noted(
    t: Tables, d: Dialect, action: RepairAction, events: Mapping[str, Sequence[UUID]], note: Note
) -> Insert:
    """Record the user, the action and the rows by group; never the content of rows."""
    by_group = {group: [str(event_id) for event_id in ids] for group, ids in events.items()}
    detail = {"verdict": note.verdict, "action": action, "events": by_group}
    return audit.record(
        t,
        d,
        who=note.who,
        action=AUDIT_ACTION,
        subject=f"reconciliation run {note.run_id}",
        detail=json.dumps(detail, ensure_ascii=False),
    )
