"""The facts about an event that a rule may test, and all values of the facts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind


class Fact(StrEnum):
    """The facts of an event and a consumer group, or of an event and its topic."""

    KIND = "kind"
    """COMMIT or ROLLBACK."""

    UPSTREAM = "upstream_status"
    """The status of the outbox row; None without a row."""

    DOWNSTREAM = "downstream_status"
    """The status of the group's inbox row; None without a row."""

    SAME_PAYLOAD = "same_payload"
    """The payloads of both rows have the same digest, or two rows with payloads do not exist."""

    SAME_ENVELOPE = "same_envelope"
    """Both rows have the same topic, type, key, business key and operation, or one row is missing.
    """

    ANSWERED = "answered"
    """Of a COMMIT: the downstream's outbox has a rollback of the event. Of a ROLLBACK: the group
    has compensated the event, by this rollback or by another one of the same event."""

    ENTITLED = "entitled"
    """Of a COMMIT: a rollback of the event is right. A group of the downstream gave the event up,
    or the downstream has compensated an event that it wrote because of this one. Also true where
    the group has compensated the event itself, so that no effect is left."""

    OWES = "owes"
    """Of a ROLLBACK: the group has to compensate the event. If its own service wrote the event,
    always; otherwise, if the group has applied the event. None: the group has no row of the event,
    and may have purged one. Of a COMMIT: the group gave the event up, and the rollback cannot have
    been purged; otherwise None."""

    UNDONE_FIRST = "undone_first"
    """Of a COMMIT: the group has compensated the event, and its effect was settled later."""

    OVERTAKEN = "overtaken"
    """Of a COMMIT: the group has received a rollback of the event."""

    WITHIN_LIMIT = "within_limit"
    """The group has made no more attempts than its limit allows, or no limit is known."""

    QUIET = "quiet"
    """No part of the event has changed after the watermark, or is due to change."""

    KEPT = "kept"
    """Young enough that neither side can have purged the missing row (of a topic: the record)."""

    RECORDED = "recorded"
    """The topic has a record of the event."""

    REPEATED = "repeated"
    """The topic has more than one record of the event."""

    IN_ORDER = "in_order"
    """No first record of a later event of the key precedes the event's first record."""


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
