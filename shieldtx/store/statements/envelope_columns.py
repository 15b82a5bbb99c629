"""The mapping between an envelope and the columns that outbox and inbox share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Row, type_coerce

from shieldtx.domain.events import NO_HEADERS, Envelope
from shieldtx.domain.states import Operation, TxKind
from shieldtx.store.columns import InsideCalendar

_KINDS = {kind.value: kind for kind in TxKind}
_OPERATIONS = {operation.value: operation for operation in Operation}


def envelope_columns(table: FromClause, time: str) -> list[ColumnElement[Any]]:
    """Return the columns that `envelope_of` reads; `time` names the column of the event's time."""
    c = table.c
    return [
        c.event_id,
        c.event_type,
        c.source,
        c.topic,
        c.payload,
        # The time comes from a clock, or from a record that the codec has checked.
        type_coerce(c[time], InsideCalendar()).label(time),
        c.tx_kind,
        c.operation,
        c.key,
        c.biz_key,
        c.headers,
        c.causation_id,
        c.causation_source,
        c.traceparent,
        c.dataschema,
    ]


ENVELOPE_WIDTH = 15
"""The number of columns that `envelope_columns` returns."""


def envelope_of(row: Row[*tuple[Any, ...]]) -> Envelope:
    """Read an envelope from the first columns of a row."""
    (
        id_,
        type_,
        source,
        topic,
        payload,
        time,
        kind,
        operation,
        key,
        biz_key,
        headers,
        causation_id,
        causation_source,
        traceparent,
        dataschema,
    ) = row[:ENVELOPE_WIDTH]
    # Built for each row: `Envelope(...)` takes twice as long.
    return tuple.__new__(
        Envelope,
        (
            id_,
            type_,
            source,
            topic,
            payload,
            time,
            _KINDS[kind],
            _OPERATIONS[operation],
            key,
            biz_key,
            json.loads(headers) if headers else NO_HEADERS,
            causation_id,
            causation_source,
            traceparent,
            dataschema,
        ),
    )


def values_of(envelope: Envelope) -> dict[str, Any]:
    """Return the columns of an envelope, without its time."""
    return {
        "event_id": envelope.id,
        "event_type": envelope.type,
        "source": envelope.source,
        "topic": envelope.topic,
        "payload": envelope.payload,
        "tx_kind": envelope.kind.value,
        "operation": envelope.operation.value,
        "key": envelope.key,
        "biz_key": envelope.biz_key,
        "headers": headers_text(envelope.headers),
        "causation_id": envelope.causation_id,
        "causation_source": envelope.causation_source,
        "traceparent": envelope.traceparent,
        "dataschema": envelope.dataschema,
    }


def columns_of(envelopes: Sequence[Envelope]) -> dict[str, list[Any]]:
    """Return the `values_of` of all envelopes, column by column."""
    return {
        "event_id": [e.id for e in envelopes],
        "event_type": [e.type for e in envelopes],
        "source": [e.source for e in envelopes],
        "topic": [e.topic for e in envelopes],
        "payload": [e.payload for e in envelopes],
        "tx_kind": [e.kind.value for e in envelopes],
        "operation": [e.operation.value for e in envelopes],
        "key": [e.key for e in envelopes],
        "biz_key": [e.biz_key for e in envelopes],
        "headers": [headers_text(e.headers) for e in envelopes],
        "causation_id": [e.causation_id for e in envelopes],
        "causation_source": [e.causation_source for e in envelopes],
        "traceparent": [e.traceparent for e in envelopes],
        "dataschema": [e.dataschema for e in envelopes],
    }


def headers_text(headers: Mapping[str, str]) -> str | None:
    """Return headers as a JSON object; None where there are none."""
    return json.dumps(dict(headers), ensure_ascii=False) if headers else None
