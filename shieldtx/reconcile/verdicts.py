"""The verdicts of the reconciliation, each with its meaning and advice."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Weight(StrEnum):
    """The effect of a verdict on the outcome of the run."""

    CLEAN = "CLEAN"
    """All sides agree, and no action is needed. Only counted."""

    NOTE = "NOTE"
    """Informative and harmless. Listed."""

    UNJUDGED = "UNJUDGED"
    """Too young or too old to judge. Listed."""

    MISMATCH = "MISMATCH"
    """Something is wrong or waits for an operator. Listed, and reflected in the run's exit status.
    """


class Verdict(StrEnum):
    """The conclusion about one event and one consumer group, or one topic."""

    weight: Weight
    meaning: str
    advice: str

    def __new__(cls, name: str, weight: Weight, meaning: str, advice: str) -> Self:
        """Create a verdict with its weight, meaning and advice."""
        verdict = str.__new__(cls, name)
        verdict._value_ = name
        verdict.weight, verdict.meaning, verdict.advice = weight, meaning, advice
        return verdict

    # Verdicts on an event and a group.
    MATCHED = (
        "MATCHED",
        Weight.CLEAN,
        "The event was published, and its effect is committed (of a rollback: its compensation).",
        "Nothing.",
    )
    REFUSED = (
        "REFUSED",
        Weight.CLEAN,
        "The event was published; the group gave it up, or had its rollback before it.",
        "Nothing here: the rollback is judged as an event of its own.",
    )
    NEVER_SENT = (
        "NEVER_SENT",
        Weight.CLEAN,
        "The event was discarded without being sent, and the group has not received it.",
        "Nothing.",
    )
    DISCARDED = (
        "DISCARDED",
        Weight.NOTE,
        "An operator discarded the event or the rollback: nothing is compensated or missing.",
        "Nothing: shield_audit of the service that discarded it has who did it and why.",
    )
    IN_FLIGHT = (
        "IN_FLIGHT",
        Weight.UNJUDGED,
        "One side has moved, or is due to move, after the watermark.",
        "Nothing: a later run judges it.",
    )
    TOO_OLD = (
        "TOO_OLD",
        Weight.UNJUDGED,
        "A row is missing on one side, which purges rows of that age.",
        "Nothing if earlier runs were clean; reconcile more often than the shortest retention.",
    )
    STUCK = (
        "STUCK",
        Weight.MISMATCH,
        (
            "A row is open (its lease ran out, it is past due, or its checks ended), and since "
            "before the watermark nothing has moved it."
        ),
        (
            "Look whether the upstream's relay and the group's consumer run and keep up; then "
            "`shieldtx reconcile repair` releases what an ended process has left."
        ),
    )
    PARKED = (
        "PARKED",
        Weight.MISMATCH,
        (
            "Delivery, handling or compensation failed permanently (FAILED, DEAD), or the outcome "
            "of a half message is unknown (UNRESOLVED): it waits for an operator."
        ),
        (
            "Read its last error with `shieldtx dead show`, repair the cause, and replay it, "
            "unless its local rollback has undone what the service did, the event was taken back, "
            "or it may have been delivered longer ago than the shortest retention; or discard it, "
            "where it is never to be handled; or, for a DEAD event that its upstream is to "
            "compensate, use `shieldtx dead refuse`."
        ),
    )
    MISSING_DOWNSTREAM = (
        "MISSING_DOWNSTREAM",
        Weight.MISMATCH,
        "The broker acknowledged the event before the watermark; the group has not received it.",
        (
            "Look at the group's lag and parked records; if the record is gone, "
            "`shieldtx reconcile repair` hands the event over to the group, and to no other."
        ),
    )
    UNKNOWN_UPSTREAM = (
        "UNKNOWN_UPSTREAM",
        Weight.MISMATCH,
        "The group has received an event that is not in the outbox of the service it names.",
        "Find out who else publishes under this source, or who restored or cleaned the upstream.",
    )
    PAYLOAD_DIFFERS = (
        "PAYLOAD_DIFFERS",
        Weight.MISMATCH,
        "Both sides have the event, with different payloads.",
        "Find out who changed a row by hand, or who else publishes under this source and id.",
    )
    ENVELOPE_DIFFERS = (
        "ENVELOPE_DIFFERS",
        Weight.MISMATCH,
        "Both sides have the event, with another topic, type, key, business key or operation.",
        "Find out who changed a row by hand, or who else publishes under this source and id.",
    )
    STATUS_DISAGREES = (
        "STATUS_DISAGREES",
        Weight.MISMATCH,
        "Both sides have the event, with statuses that exclude each other.",
        (
            "It was delivered anyway. FAILED: where `shieldtx dead show` reports that it may "
            "have been delivered, it is a rollback, or its type has no local rollback, both sides "
            "have kept their part: undo nothing. `shieldtx dead replay` it, if it was written more "
            "recently than the shortest retention of all services and was not taken back: its "
            "groups know its id. Otherwise a group would apply it twice, or after its "
            "compensation: make up by hand for what groups lack. FAILED, and its service has "
            "undone its part: undo the group's, too. HALF or "
            "UNRESOLVED: find out whether its transaction committed. If so, `shieldtx half "
            "commit`; if not, `shieldtx half rollback`, and undo the group's part. DISCARDED: "
            "undo the group's part, unless its service has kept its own. Both settled: find out "
            "who changed one of them by hand."
        ),
    )
    ATTEMPTS_DIFFER = (
        "ATTEMPTS_DIFFER",
        Weight.MISMATCH,
        "The group gave the event up after more attempts than its limit allows.",
        (
            "Compare the limit in reconcile.toml with the handler's RetryPolicy; if they agree, a "
            "handler ran more often than it may."
        ),
    )
    EFFECT_DESPITE_ROLLBACK = (
        "EFFECT_DESPITE_ROLLBACK",
        Weight.MISMATCH,
        (
            "The group's effect is committed and not compensated, and its service has taken the "
            "event back nevertheless; or the group had compensated the event before its effect."
        ),
        "Undo the effect downstream, or the compensation upstream: both cannot be right.",
    )
    NEITHER_EFFECT_NOR_COMPENSATION = (
        "NEITHER_EFFECT_NOR_COMPENSATION",
        Weight.MISMATCH,
        "The group gave the event up, but no rollback of it is in that service's outbox.",
        "`shieldtx reconcile repair` raises the missing rollback: nothing else will.",
    )
    ROLLBACK_NOT_COMPENSATED = (
        "ROLLBACK_NOT_COMPENSATED",
        Weight.MISMATCH,
        "The group has settled a rollback, but neither it nor another one compensated its event.",
        (
            "Look whether the compensation took place: an earlier rollback, whose row has been "
            "purged since, may have compensated the event. Make up for it by hand if none did."
        ),
    )

    # Verdicts on an event and its topic.
    ON_TOPIC = ("ON_TOPIC", Weight.CLEAN, "The event has its record in the topic.", "Nothing.")
    NOT_ON_TOPIC = (
        "NOT_ON_TOPIC",
        Weight.CLEAN,
        "The event has not been sent, and no record of it is in the topic.",
        "Nothing.",
    )
    BEFORE_TOPIC = (
        "BEFORE_TOPIC",
        Weight.UNJUDGED,
        "The topic has no record of the event any more: it begins later than the event.",
        "Nothing; reconcile more often than the topic's retention to have such events judged.",
    )
    ABSENT_FROM_TOPIC = (
        "ABSENT_FROM_TOPIC",
        Weight.MISMATCH,
        "The outbox shows that the broker acknowledged the event, and the topic has no record.",
        (
            "Ask whether the broker lost or deleted records. Groups that lack it are listed by "
            "themselves; for others, the repair publishes it again if this verdict is named."
        ),
    )
    RECORD_WITHOUT_ROW = (
        "RECORD_WITHOUT_ROW",
        Weight.MISMATCH,
        "The topic has a record under the service's source that is not in its outbox.",
        "Find out who else publishes under this source, or who restored or cleaned the outbox.",
    )
    ORDER_INVERTED = (
        "ORDER_INVERTED",
        Weight.MISMATCH,
        "The event's first record comes after that of an event which its key wrote later.",
        "Find out who published it: two relays of different settings, or a replay by hand.",
    )
    DUPLICATE_RECORDS = (
        "DUPLICATE_RECORDS",
        Weight.NOTE,
        "The topic has several records of the event, as after a crash or an unclear answer.",
        "Nothing: inboxes know the event by its id.",
    )

    @property
    def is_mismatch(self) -> bool:
        """Return whether the verdict makes the run end with mismatches."""
        return self.weight is Weight.MISMATCH

    @property
    def is_listed(self) -> bool:
        """Return whether rows with the verdict are written out, not only counted."""
        return self.weight is not Weight.CLEAN
