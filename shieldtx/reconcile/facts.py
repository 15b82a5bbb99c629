"""What a rule may ask of an event: the facts, and every value that they can have."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind


class Fact(StrEnum):
    """What a rule may ask about an event and a consumer group, or about an event and its topic."""

    KIND = "kind"
    """COMMIT or ROLLBACK."""

    UPSTREAM = "upstream_status"
    """The status of the outbox row; None without one."""

    DOWNSTREAM = "downstream_status"
    """The status of the group's inbox row; None without one."""

    SAME_PAYLOAD = "same_payload"
    """The payloads of both rows have the same digest, or there are no two rows with payloads."""

    SAME_ENVELOPE = "same_envelope"
    """Both rows have the same topic, type, key, business key and operation, or there are no two."""

    ANSWERED = "answered"
    """Of a COMMIT: a rollback of it is in the downstream's outbox. Of a ROLLBACK: the group has
    compensated its event, by this rollback or by another one of the same event."""

    ENTITLED = "entitled"
    """Of a COMMIT: a group of the downstream gave it up, or the downstream has compensated an event
    that it wrote because of it, so that a rollback of it is right; or the group has compensated it
    itself, so that nothing of its effect is left."""

    OWES = "owes"
    """Of a ROLLBACK: the group has to compensate its event. So it has where its own service wrote
    the event, and otherwise where the group has applied it. None: the group has no row of the
    event, and may have purged one. Of a COMMIT: the group gave it up, and its rollback cannot have
    been purged; otherwise None."""

    UNDONE_FIRST = "undone_first"
    """Of a COMMIT: the group has compensated the event, and its effect was settled later."""

    OVERTAKEN = "overtaken"
    """Of a COMMIT: the group has received a rollback of it."""

    WITHIN_LIMIT = "within_limit"
    """The group has made no more attempts than its limit allows, or no limit is known."""

    QUIET = "quiet"
    """Nothing about the event has moved, nor is due to, after the watermark."""

    KEPT = "kept"
    """Young enough that neither side can have purged what is missing (of a topic: its record)."""

    RECORDED = "recorded"
    """The topic has a record of the event."""

    REPEATED = "repeated"
    """The topic has more than one record of it."""

    IN_ORDER = "in_order"
    """Its first record is behind no first record of an event that its key wrote later."""


Value = TxKind | OutboxStatus | InboxStatus | bool | None

_TRUTH = (False, True)
VOCABULARY: Mapping[Fact, tuple[Value, ...]] = MappingProxyType(
    dict.fromkeys(Fact, _TRUTH)
    | {
        Fact.KIND: tuple(TxKind),
        Fact.UPSTREAM: (None, *OUTBOX.states),
        Fact.DOWNSTREAM: (None, *INBOX.states),
        Fact.OWES: (None, *_TRUTH),
    }
)
"""Every value that a fact can have."""
