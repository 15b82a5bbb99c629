"""Deliberate defects of either side, which schedules of overlapping transactions have to find."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from uuid import UUID

from sqlalchemy import Engine, event

from tests.verification.simulation.database import COMPENSATES, WRITTEN_KEY, Transaction
from tests.verification.simulation.inbox import COMPENSATION
from tests.verification.simulation.inbox_receiver import BUSINESS_KEY

_TOKEN = r"lease_token = %\(\w+\)s::UUID"

_IDENTITY = "(consumer_group, source, event_id)"

IN_MEMORY: dict[str, Callable[[Hashable, bool], bool]] = {
    "outbox rows": lambda key, _: isinstance(key, UUID),
    "inbox rows": lambda key, writes: _is_of_inbox(key) and not writes,
    "inbox rows that are written": lambda key, writes: _is_of_inbox(key) and writes,
    "business keys": lambda key, _: _begins(key, BUSINESS_KEY),
    "business keys of written events": lambda key, _: _begins(key, WRITTEN_KEY),
    "what is compensated": lambda key, _: _begins(key, COMPENSATION),
    "events that are taken back": lambda key, _: _begins(key, COMPENSATES),
}
"""The locks that are left out in memory, by their key."""

IN_SQL: dict[str, tuple[str, str, str]] = {
    "claim waits for locked rows": ("AS aside", " SKIP LOCKED", ""),
    "outbox settles without token": ("UPDATE shield_outbox", rf"shield_outbox.{_TOKEN}", "true"),
    "inbox settles without token": ("UPDATE shield_inbox", rf"shield_inbox.{_TOKEN}", "true"),
    "effect locks no row": ("FROM shield_inbox", " FOR NO KEY UPDATE", ""),
    "local rollback locks no row": ("FROM shield_outbox", " FOR NO KEY UPDATE", ""),
    "compensation locks no event of its own": ("SELECT", " FOR KEY SHARE", ""),
    "compensation locks out the relay": ("SELECT", " FOR KEY SHARE", " FOR UPDATE"),
    "compensations go on together": ("SELECT", "pg_advisory_xact_lock", "abs"),
    "start waits for a locked row": ("UPDATE shield_inbox.* AS waiting", " SKIP LOCKED", ""),
    "start locks no row": ("UPDATE shield_inbox.* AS waiting", " FOR UPDATE SKIP LOCKED", ""),
    "due looks at no held key": ("^SELECT.* AS waiting", r"earlier\.seq < waiting\.seq", "false"),
    "claim misses what another got": ("AS aside", r"count\(\*\)", "0 * count(*)"),
    "event ids alone are unique": ("INTO shield_inbox", "CONFLICT DO", f"CONFLICT {_IDENTITY} DO"),
    "settled at the commit": ("UPDATE", r"%\(locked_at\)s::[A-Z ]*ZONE", "statement_timestamp()"),
}
"""For statements with the first pattern: the pattern to replace, and the replacement."""

SEEDS = {
    "business keys": 219,
    "business keys of written events": 20,
    "what is compensated": 720,
    "events that are taken back": 397,
    "claim waits for locked rows": 73,
    "compensation locks no event of its own": 397,
    "compensation locks out the relay": 60,
    "compensations go on together": 50,
    "claim misses what another got": 63,
}
"""Seeds of schedules that find a defect which needs a rare coincidence.

They lose their property when the course of the schedules changes: then search for new ones.
"""


@contextmanager
def without_locks(of: str) -> Iterator[None]:
    """Leave these locks out in memory."""
    sound = Transaction.lock

    def lock(self: Transaction, key: Hashable, *, writes: bool = False) -> None:
        if not IN_MEMORY[of](key, writes):
            sound(self, key, writes=writes)

    with patch.object(Transaction, "lock", lock):
        yield


@contextmanager
def rewritten(engine: Engine, name: str) -> Iterator[None]:
    """Send statements to the server with the text of a defect."""
    holds, pattern, instead = IN_SQL[name]

    def rewrite(_connection: Any, _cursor: Any, statement: str, given: Any, *_: Any) -> Any:
        if re.search(holds, statement, re.DOTALL):
            statement = re.sub(pattern, instead, statement)
        return statement, given

    event.listen(engine, "before_cursor_execute", rewrite, retval=True)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", rewrite)


def _is_of_inbox(key: Hashable) -> bool:
    return isinstance(key, tuple) and isinstance(key[-1], str)


def _begins(key: Hashable, kind: str) -> bool:
    return isinstance(key, tuple) and key[0] == kind
