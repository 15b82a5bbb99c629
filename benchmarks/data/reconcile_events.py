"""The events of the reconciliation's benchmark: one after the other, with known mistakes.

`orders` has written an event every 432 ms, which is 200,000 a day, and the group `reserve` of
`stock` has received them. Each thousandth event is refused and compensated, correctly; of each
10,000 events one is wrong, in ten alternating ways. This module and both databases compute the
event of a number in the same way, so that nothing has to be copied between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final
from uuid import UUID

from shieldtx.reconcile.verdicts import Verdict

STEP_MS: Final = 432
PERIOD: Final = 10_000
"""One event of this number is wrong: 0.01 %."""
_PLACE: Final = 4_999
_REFUSED: Final = (1_000, 250)
LIMIT: Final = 10
"""Maximum attempts of the group."""
TYPES: Final = ("orders.placed", "orders.paid", "orders.shipped")
GROUP: Final = "reserve"
COMPENSATOR: Final = "refund"

FLAWS: Final[Mapping[str, Verdict]] = MappingProxyType(
    {
        "LOST": Verdict.MISSING_DOWNSTREAM,
        "CHANGED": Verdict.PAYLOAD_DIFFERS,
        "INVENTED": Verdict.UNKNOWN_UPSTREAM,
        "HANGING": Verdict.STUCK,
        "SILENT": Verdict.NEITHER_EFFECT_NOR_COMPENSATION,
        "TIRELESS": Verdict.ATTEMPTS_DIFFER,
        "UNSENT": Verdict.STUCK,
        "FAILED": Verdict.PARKED,
        "UNDONE": Verdict.EFFECT_DESPITE_ROLLBACK,
        "SKIPPED": Verdict.ROLLBACK_NOT_COMPENSATED,
    }
)
"""The alternating mistakes, and the verdict of each."""
_NAMES: Final = tuple(FLAWS)
NOTE: Final = "x" * 165
"""Makes a payload of about 300 bytes."""

Said = tuple[str, Verdict]
"""An event's id, and its expected or reported verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """The events by their numbers, from 0 on."""

    begin_ms: int
    """Time of the first event, in milliseconds since 1970."""

    def written_at(self, number: int) -> datetime:
        """Return when an event was written."""
        return datetime.fromtimestamp(self._ms(number) / 1000, tz=UTC)

    def event_id(self, number: int) -> str:
        """Return the id of an event: a UUIDv7 of its time and of a digest of its number."""
        return _uuid7(self._ms(number), str(number))

    def rollback_id(self, number: int) -> str:
        """Return the id of the rollback of an event."""
        return _uuid7(self._ms(number) + 100, f"rollback {number}")

    def flaw_of(self, number: int) -> str | None:
        """Return what is wrong with an event, None for nearly all events."""
        return _NAMES[number // PERIOD % len(_NAMES)] if number % PERIOD == _PLACE else None

    def flawed(self, begin: int, end: int) -> range:
        """Return the wrong events from one number to another."""
        first = begin - begin % PERIOD + _PLACE
        return range(first if first >= begin else first + PERIOD, end, PERIOD)

    def truth(self, begin: int, end: int) -> set[Said]:
        """Return the expected verdicts of the events from one number to another."""
        said = set()
        for number in self.flawed(begin, end):
            flaw = _NAMES[number // PERIOD % len(_NAMES)]
            of = self.rollback_id if flaw == "SKIPPED" else self.event_id
            said.add((of(number), FLAWS[flaw]))
        return said

    def _ms(self, number: int) -> int:
        return self.begin_ms + number * STEP_MS


def _uuid7(milliseconds: int, name: str) -> str:
    digest = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
    return str(UUID(f"{milliseconds:012x}7{digest[:3]}8{digest[3:18]}"))


def _array(words: tuple[str, ...]) -> str:
    return "ARRAY[" + ", ".join(f"'{word}'" for word in words) + "]"


# OFFSET 0: otherwise each use of a column would compute it again.
_LINE: Final = f"""
FROM (
    SELECT i, written, written_ms, fate, digest, kind,
           'key-' || mod(i, 1000) AS key,
           (lpad(to_hex(written_ms), 12, '0') || '7' || substr(digest, 1, 3) || '8'
            || substr(digest, 4, 15))::uuid AS id,
           '{{"order":' || i || ',"customer":"customer-' || mod(i, 100000) || '","token":"'
           || digest || digest || '","note":"{NOTE}"}}' AS payload
    FROM (
        SELECT i, written_ms, timestamptz 'epoch' + written_ms * interval '1 ms' AS written, fate,
               md5(i::text) AS digest, ({_array(TYPES)})[mod(i, 3) + 1] AS kind
        FROM (
            SELECT i, %(begin_ms)s::bigint + i * {STEP_MS} AS written_ms,
                   CASE WHEN mod(i, {PERIOD}) = {_PLACE}
                        THEN ({_array(_NAMES)})[mod(i / {PERIOD}, {len(_NAMES)}) + 1]
                        WHEN mod(i, {_REFUSED[0]}) = {_REFUSED[1]} THEN 'REFUSED' ELSE ''
                   END AS fate
            FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 1) AS i OFFSET 0) AS numbers
        OFFSET 0) AS events
    OFFSET 0) AS line
"""  # noqa: S608  no values in it
_BACK: Final = """
CROSS JOIN LATERAL (
    SELECT md5('rollback ' || i) AS d, written + interval '100 ms' AS back_at) AS b
CROSS JOIN LATERAL (
    SELECT (lpad(to_hex(written_ms + 100), 12, '0') || '7' || substr(d, 1, 3) || '8'
            || substr(d, 4, 15))::uuid AS back_id) AS c
WHERE fate IN ('REFUSED', 'TIRELESS', 'UNDONE', 'SKIPPED')
"""
_OUTBOX: Final = """
INSERT INTO shield_outbox (
    event_id, shard, source, topic, event_type, tx_kind, operation, key, payload, causation_id,
    causation_source, status, attempts, waiting, holds_key, due_at, unconfirmed, lease_token,
    lease_until, created_at, settled_at, last_error)
"""
_INBOX: Final = """
INSERT INTO shield_inbox (
    event_id, consumer_group, source, topic, event_type, tx_kind, operation, key, payload,
    causation_id, causation_source, event_time, compensated_id, status, attempts, due_at,
    record_partition, record_offset, received_at, settled_at, last_error)
"""
_SENT: Final = f"""{_OUTBOX}
SELECT id, mod(crc32(convert_to(key, 'UTF8')), 64), 'orders', kind, kind, 'COMMIT', 'INSERT', key,
       payload, NULL, NULL,
       CASE fate WHEN 'UNSENT' THEN 'PROCESSING' WHEN 'FAILED' THEN 'FAILED' ELSE 'PROCESSED' END,
       1, false, false, written, false, CASE fate WHEN 'UNSENT' THEN gen_random_uuid() END,
       CASE fate WHEN 'UNSENT' THEN written + interval '30 s' END, written,
       CASE WHEN fate <> 'UNSENT' THEN written + (3 + mod(i, 17)) * interval '1 ms' END,
       CASE fate WHEN 'FAILED' THEN 'MessageSizeTooLarge: refused' END
{_LINE}
WHERE fate <> 'INVENTED'
"""
_RECEIVED: Final = f"""{_INBOX}
SELECT id, '{GROUP}', 'orders', kind, kind, 'COMMIT', 'INSERT', key,
       CASE fate WHEN 'CHANGED' THEN replace(payload, '"order":', '"order":1') ELSE payload END,
       NULL, NULL, written, NULL,
       CASE WHEN fate IN ('REFUSED', 'SILENT', 'TIRELESS', 'SKIPPED') THEN 'MAX_RECONSUMED'
            WHEN fate = 'HANGING' THEN 'PROCESSING' ELSE 'PROCESSED' END,
       CASE WHEN fate = 'TIRELESS' THEN {LIMIT} + 4 WHEN fate = 'HANGING' THEN 3
            WHEN fate IN ('REFUSED', 'SILENT', 'SKIPPED') THEN {LIMIT} ELSE 1 END,
       written, mod(i, 8), i / 8, written + (20 + mod(i, 31)) * interval '1 ms',
       CASE WHEN fate <> 'HANGING' THEN written + (60 + mod(i, 37)) * interval '1 ms' END,
       CASE WHEN fate IN ('REFUSED', 'SILENT', 'TIRELESS', 'SKIPPED', 'HANGING')
            THEN 'Refused: out of stock' END
{_LINE}
WHERE fate NOT IN ('LOST', 'UNSENT', 'FAILED')
"""
_TAKEN_BACK: Final = f"""{_OUTBOX}
SELECT back_id, mod(crc32(convert_to(key, 'UTF8')), 64), 'stock', kind, kind, 'ROLLBACK', 'INSERT',
       key, '{{"reason": "Refused: out of stock"}}', id, 'orders', 'PROCESSED', 1, false, false,
       back_at, false, NULL, NULL, back_at, back_at + interval '5 ms', NULL
{_LINE}{_BACK}
"""
_RETURNED: Final = f"""{_INBOX}
SELECT back_id, '{COMPENSATOR}', 'stock', kind, kind, 'ROLLBACK', 'INSERT', key,
       '{{"reason": "Refused: out of stock"}}', id, 'orders', back_at,
       CASE WHEN fate <> 'SKIPPED' THEN id END, 'PROCESSED', 1, back_at, mod(i, 8), i / 8,
       back_at + interval '20 ms', back_at + interval '40 ms', NULL
{_LINE}{_BACK}
"""
STATEMENTS: Final = {"orders": (_SENT, _RETURNED), "stock": (_RECEIVED, _TAKEN_BACK)}

ABSENT: Final = {
    "orders": ("shield_outbox", {"INVENTED"}),
    "stock": ("shield_inbox", {"LOST", "UNSENT", "FAILED"}),
}
"""The table of a service with the events, and the flaws whose events are missing there."""
