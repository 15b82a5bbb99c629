"""Dead letters and parked records as text and as JSON; the keys are stable."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from shieldtx.cli.output import moment
from shieldtx.domain.external_ids import EXTERNAL_ID
from shieldtx.store.dead_letter_rows import DeadLetter, ParkedRecord
from shieldtx.store.discards import DISCARDED, PARKED

_TITLES: Final = {
    "group": "group",
    "key": "key",
    "business key": "biz_key",
    "attempts": "attempts",
}

_LONGEST: Final = 256
"""The most characters that a list shows of a header; an event's names are shorter."""

RECORD_REF: Final = ("GROUP", "TOPIC", "PARTITION", "OFFSET")


def status_of(row: DeadLetter | ParkedRecord) -> str:
    """Return the status of a row at the time of its reading."""
    if isinstance(row, DeadLetter):
        return row.status.value
    return PARKED if row.discarded_at is None else DISCARDED


def titled(row: DeadLetter | ParkedRecord) -> str:
    """Return the name of a row, with its type and state."""
    type_ = f" ({row.envelope.type})" if isinstance(row, DeadLetter) else ""
    return f"{row}{type_} is {status_of(row)}"


def summary_of(row: DeadLetter | ParkedRecord) -> dict[str, Any]:
    """Return the fields of a row that a list shows."""
    return summary_of_letter(row) if isinstance(row, DeadLetter) else summary_of_record(row)


def summary_of_letter(letter: DeadLetter) -> dict[str, Any]:
    """Return the fields of an event that a list shows."""
    event = letter.envelope
    return {
        "status": letter.status.value,
        "ref": str(event.id),
        "group": letter.group,
        "source": event.source,
        "topic": event.topic,
        "kind": event.kind.value,
        "event_type": event.type,
        "key": event.key,
        "biz_key": event.biz_key,
        "attempts": letter.attempts,
        "since": moment(letter.settled_at),
        "reason": letter.reason,
    }


def details_of_letter(letter: DeadLetter, *, unmasked: bool) -> dict[str, Any]:
    """Return all fields of an event."""
    event = letter.envelope
    return summary_of_letter(letter) | {
        "may_have_been_delivered": letter.unconfirmed,
        "external_id": event.headers.get(EXTERNAL_ID),
        "operation": event.operation.value,
        "time": moment(event.time),
        "causation_id": None if event.causation_id is None else str(event.causation_id),
        "causation_source": event.causation_source,
        "traceparent": event.traceparent,
        "dataschema": event.dataschema,
        "headers": {
            name: value if unmasked else masked(value.encode())
            for name, value in event.headers.items()
            if name != EXTERNAL_ID
        },
        "payload": event.payload if unmasked else masked(event.payload.encode()),
        "payload_bytes": len(event.payload.encode()),
    }


def summary_of_record(parked: ParkedRecord) -> dict[str, Any]:
    """Return the fields of a parked record that a list shows."""
    record = parked.record
    return {
        "status": status_of(parked),
        "ref": parked.ref,
        "group": parked.group,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "kind": _header(parked, "ce_txkind"),
        "event_type": _header(parked, "ce_type"),
        "key": _text(record.key),
        "biz_key": _header(parked, "ce_bizkey"),
        "since": moment(parked.parked_at),
        "reason": parked.reason,
    }


def details_of_record(parked: ParkedRecord, *, unmasked: bool) -> dict[str, Any]:
    """Return all fields of a parked record; bytes that are not text are escaped."""
    shown = _text if unmasked else masked
    return summary_of_record(parked) | {
        "headers": [[name, shown(value)] for name, value in parked.record.headers],
        "payload": shown(parked.record.value),
        "payload_bytes": None if parked.record.value is None else len(parked.record.value),
    }


def lines_of(summary: dict[str, Any]) -> list[str]:
    """Return a summary in three lines; the first contains the argument of `dead show`."""
    what = [summary[name] for name in ("event_type", "kind") if summary[name] is not None]
    named = [
        f"{title} {summary[name]}"
        for title, name in _TITLES.items()
        if summary.get(name) is not None
    ]
    return [
        f"{summary['status']:<7} {summary['ref']}  {summary['since'] or ''}",
        f"        {', '.join([*([' '.join(what)] if what else []), *named])}",
        f"        {summary['reason']}",
    ]


def warning_of(
    letter: DeadLetter, *, taken_back: bool = False, kept_since: datetime | None = None
) -> str:
    """Return the risks of replaying a FAILED event, for an operator.

    This service's inbox has the rows that settled since `kept_since`; other services may keep
    fewer.
    """
    done = (
        "an attempt that was never confirmed may have delivered it, and its local rollback was "
        "withheld"
        if letter.unconfirmed
        else "its local rollback, if it has one, has run already and has taken it back here"
    )
    more = ""
    if taken_back:
        more += (
            " There is a rollback of it: its effect would come after the compensation. Do not "
            "replay it unless that is what you want."
        )
    written = letter.envelope.time
    if letter.unconfirmed and kept_since is not None and written < kept_since:
        more += (
            f" It was written at {moment(written)}, before what an inbox is sure to keep: a group "
            "may have applied it and purged its row, and would apply it once more. Find out "
            "whether its effects are there."
        )
    return (
        f"warning: {titled(letter)}; {done}. Replay publishes it now, after later events of its "
        f"key.{more}"
    )


class Placeholder(str):
    """The text in place of a value that may be confidential; in JSON it is null."""

    __slots__ = ()


def masked(value: bytes | None) -> Placeholder | None:
    """Return a placeholder for a value that may be confidential."""
    return None if value is None else Placeholder(f"({len(value)} bytes, --payload shows them)")


def without_placeholders(details: Any) -> Any:
    """Return fields for JSON: null where a value is masked."""
    match details:
        case Placeholder():
            return None
        case dict():
            return {name: without_placeholders(value) for name, value in details.items()}
        case list():
            return [without_placeholders(value) for value in details]
    return details


def _header(parked: ParkedRecord, name: str) -> str | None:
    """Return the beginning of a header of a record that may be no event."""
    text = _text(dict(parked.record.headers).get(name))
    return text if text is None or len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
