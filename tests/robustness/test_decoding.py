"""Any record at all becomes an event that the tables accept, or is refused and parked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, select

from shieldtx import Event
from shieldtx.brokers import cloudevents, decoding
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import Operation, TxKind
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.errors import EventRefused, UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent, Parked
from shieldtx.store.dead_letters import SqlDeadLetters
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.schema import Schema
from shieldtx.store.statements.envelope_columns import envelope_columns, envelope_of
from shieldtx.store.tables import tables
from tests.robustness import strategies
from tests.robustness.strategies import GOOD, PREFIX, received

LONGEST_S = 2.0
"""Processor time for one record, since the machine may be busy."""

PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
"""Without the phase "explain", which traces every line and takes minutes here."""

# --- in memory --------------------------------------------------------------------------------


def decoded(record: ReceivedRecord) -> Envelope | str:
    """Return the envelope of a record, or the reason why it has none."""
    began = time.thread_time()
    try:
        found: Envelope | str = decoding.decode(record, PREFIX)
    except UndecodableRecord as error:
        found = str(error)
    assert time.thread_time() - began < LONGEST_S
    if isinstance(found, str):
        assert found.isprintable(), "a reason is a line for people"
        assert len(found) < 500
    return found


@given(strategies.records)
@settings(phases=PHASES, max_examples=400)
def test_accepted_record_survives_another_encoding(record: ReceivedRecord) -> None:
    envelope = decoded(record)
    if isinstance(envelope, Envelope):
        assert decoding.decode(received(cloudevents.encode(envelope, PREFIX)), PREFIX) == envelope


def bare(value: bytes) -> ReceivedRecord:
    return received(cloudevents.encode(GOOD, PREFIX))._replace(value=value)


@pytest.mark.parametrize(
    "value",
    [
        b"[1" + b"0" * 400 + b".5]",
        b"[1" + b"0" * 250 + b"e99]",
        b"[-1" + b"0" * 250 + b"E+99]",
        b"[1e0000000000400]",
    ],
    ids=["digits", "digits and exponent", "negative", "exponent with zeros"],
)
def test_number_beyond_a_double_is_refused_in_any_notation(value: bytes) -> None:
    reason = decoded(bare(value))
    assert isinstance(reason, str)
    assert "beyond the range of a double" in reason


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b",".join([b"1" * 199] * 5_000) + b"]",
        b"[" + b"1" * 4_000 + b"]",
        b'"' + b"1" * 1_000_000 + b'"',
        b'"' + b"\\\\u0000" * 100_000 + b'"',
        b"[" + b"1e999," * 100_000 + b"1]",
        b'{"a":' * 199 + b"1e9" + b"}" * 199,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" + b'{"a":[' * 50_000,
    ],
    ids=[
        "numbers just below the suspicious",
        "one long number",
        "digits that are text",
        "escapes that are none",
        "many infinities",
        "the deepest",
        "lists without end",
        "objects without end",
        "both in turn",
    ],
)
def test_large_payload_is_checked_in_bounded_time(value: bytes) -> None:
    decoded(bare(value))


def test_ten_thousand_headers_are_refused_before_parsing() -> None:
    record = received(cloudevents.encode(GOOD, PREFIX))
    many = record._replace(headers=(*record.headers, *((f"h{n}", b"x") for n in range(10_000))))
    assert decoded(many) == "headers: 10015, the limit is 256"


def test_header_name_that_is_not_utf_8_is_refused() -> None:
    record = received(cloudevents.encode(GOOD, PREFIX))
    reason = decoded(record._replace(headers=(*record.headers, ("te\udcffnant", b"x"))))
    assert isinstance(reason, str)
    assert "'te\\udcffnant'" in reason


@pytest.mark.parametrize("time_", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_time_outside_of_some_time_zones_is_refused(time_: str) -> None:
    record = received(cloudevents.encode(GOOD, PREFIX))
    headers = dict(record.headers) | {"ce_time": time_.encode()}
    reason = decoded(record._replace(headers=tuple(headers.items())))
    assert isinstance(reason, str)
    assert reason.startswith("ce_time")


def test_event_that_takes_itself_back_is_refused() -> None:
    itself = GOOD.evolve(kind=TxKind.ROLLBACK, causation_id=GOOD.id, causation_source=GOOD.source)
    reason = decoded(received(cloudevents.encode(itself, PREFIX)))
    assert isinstance(reason, str)
    assert reason.startswith("ce_causationid")


# --- every event that shieldtx writes, shieldtx reads -------------------------------------------

EVENT_TYPES = EventTypeRegistry()
EVENT_TYPES.declare("orders.placed")
numbers = st.integers() | st.floats() | st.integers(10**300, 10**310)
payloads = st.recursive(
    st.none() | st.booleans() | numbers | strategies.texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(strategies.texts, inner, max_size=3)
    ),
    max_leaves=8,
)
header_names = st.sampled_from(
    ["CE_id", "Content-Type", "tenant", "X", "ce", "h."]
) | st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
some_headers = st.dictionaries(header_names, strategies.texts, max_size=4) | st.integers(
    0, 400
).map(lambda count: {f"h{number}": "" for number in range(count)})
long_texts = strategies.texts | st.integers(0, 700).map(lambda size: "x" * size)
events = st.builds(
    Event,
    type=st.just("orders.placed"),
    payload=payloads,
    key=st.none() | long_texts,
    biz_key=st.none() | long_texts,
    operation=st.sampled_from(Operation),
    headers=some_headers,
    causation_id=st.none() | st.uuids(version=4),
    causation_source=st.none() | long_texts,
    traceparent=st.none() | long_texts,
)


@given(events)
@settings(phases=PHASES, max_examples=400)
@example(Event(type="orders.placed", headers={"CE_id": "x"}))
@example(Event(type="orders.placed", headers={"Content-Length": "7"}))
@example(Event(type="orders.placed", headers={f"h{n}": "" for n in range(250)}))
@example(Event(type="orders.placed", causation_source="x" * 257))
@example(Event(type="orders.placed", traceparent="x" * 257))
def test_every_event_that_may_be_written_can_be_read(event: Event) -> None:
    try:
        payload = EVENT_TYPES.encode(event)
    except EventRefused:
        return
    envelope = Envelope(
        id=event.id,
        type=event.type,
        source="orders",
        topic="orders.placed",
        payload=payload,
        time=datetime(2026, 3, 1, tzinfo=UTC),
        kind=event.kind,
        operation=event.operation,
        key=event.key,
        biz_key=event.biz_key,
        headers=event.headers,
        causation_id=event.causation_id,
        causation_source=event.causation_source,
        traceparent=event.traceparent,
    )
    assert decoding.decode(received(cloudevents.encode(envelope, PREFIX)), PREFIX) == envelope


# --- in the tables ----------------------------------------------------------------------------

ZONES = ("Pacific/Kiritimati", "America/Adak")
"""UTC+14 and UTC-10."""


@pytest.fixture(scope="module")
def engines(postgres: EmbeddedPostgres) -> Iterator[dict[str, Engine]]:
    """A migrated database, with sessions in time zones far from UTC."""
    name = f"test_{uuid4().hex}"
    postgres.create_database(name)
    options = {zone: {"options": f"-c timezone={zone}"} for zone in ZONES}
    engines = {z: create_engine(postgres.url(name), connect_args=o) for z, o in options.items()}
    Schema(engines[ZONES[0]], shards=1).upgrade()
    yield engines
    for engine in engines.values():
        engine.dispose()
    postgres.drop_database(name)


@given(st.lists(strategies.records, min_size=1, max_size=8), st.sampled_from(ZONES))
@settings(phases=PHASES, max_examples=80)
def test_batch_of_any_records_is_stored_and_read_back(
    engines: dict[str, Engine], batch: list[ReceivedRecord], zone: str
) -> None:
    group, engine = uuid4().hex, engines[zone]
    arrivals: list[IncomingEvent] = []
    parked: list[Parked] = []
    for offset, drawn in enumerate(batch):
        record = drawn._replace(offset=offset)
        envelope = decoded(record)
        if isinstance(envelope, Envelope):
            arrivals.append(IncomingEvent(envelope=envelope, record=record))
        else:
            parked.append(Parked(record=record, reason=envelope))

    receipt = SqlInboxStore(engine, tables()).receive(group, arrivals, parked)

    assert len(receipt.fresh) + receipt.duplicates + len(receipt.parked) == len(batch)
    assert len(receipt.parked) >= len(parked)
    assert rows(engine, group) == {e.id: e for e in receipt.fresh}
    letters = SqlDeadLetters(engine, tables()).parked(limit=99, group=group)
    kept = {letter.record.offset: letter for letter in letters}
    assert len(kept) == len(receipt.parked)
    for each in parked:
        assert kept[each.record.offset].record == each.record
        assert kept[each.record.offset].reason == each.reason


def rows(engine: Engine, group: str) -> dict[UUID, Envelope]:
    """Return every row of a group, including those of blocked keys."""
    inbox = tables().inbox
    statement = select(*envelope_columns(inbox, "event_time")).where(
        inbox.c.consumer_group == group
    )
    with engine.connect() as connection:
        return {e.id: e for e in map(envelope_of, connection.execute(statement))}
