"""The wire format: decoding inverts encoding, and no foreign record passes the decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shieldtx.brokers import cloudevents, decoding
from shieldtx.domain.events import Envelope
from shieldtx.domain.external_ids import EXTERNAL_ID, event_id_of
from shieldtx.domain.states import Operation, TxKind
from shieldtx.errors import EventRefused, UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord, Record

PREFIX = "shop."

# --- events that can be written -----------------------------------------------------------------

storable = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=60)
names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,60}\Z")
header_names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,30}\Z").filter(
    lambda name: not name.lower().startswith(("ce_", "content-"))
)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable, inner, max_size=4),
    max_leaves=12,
)
payloads = st.builds(
    lambda value, ascii_, indent: json.dumps(value, ensure_ascii=ascii_, indent=indent),
    plain,
    st.booleans(),
    st.none() | st.just(1),
)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
envelopes = st.builds(
    Envelope,
    id=st.uuids(),
    type=names,
    source=names,
    topic=names,
    payload=payloads,
    time=st.datetimes(datetime(1970, 1, 2), datetime(9998, 1, 1), timezones=zones),  # noqa: DTZ001
    kind=st.sampled_from(TxKind),
    operation=st.sampled_from(Operation),
    key=st.none() | storable,
    biz_key=st.none() | storable,
    headers=st.dictionaries(header_names, storable, max_size=6),
    causation_id=st.none() | st.uuids(),
    causation_source=st.none() | names,
    traceparent=st.none() | storable,
    dataschema=st.none() | storable.filter(bool),
)
prefixes = st.sampled_from(["", "shop.", "a", ".", "commit."])


def received(record: Record, **changes: Any) -> ReceivedRecord:
    """Return the record as a consumer would read it."""
    whole = ReceivedRecord(
        topic=record.topic,
        partition=0,
        offset=0,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )
    return whole._replace(**changes)


@given(envelopes, prefixes)
def test_every_envelope_is_decoded_as_it_was_encoded(envelope: Envelope, prefix: str) -> None:
    assert decoding.decode(received(cloudevents.encode(envelope, prefix)), prefix) == envelope


ORDER = Envelope(
    id=UUID("01990000-0000-7000-8000-000000000001"),
    type="orders.placed",
    source="orders",
    topic="orders",
    payload='{"id":17,"who":"Zoë"}',
    time=datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=timezone(timedelta(hours=2))),
    operation=Operation.UPDATE,
    key="household-4",
    biz_key="17",
    headers={"tenant": "north"},
    causation_id=UUID("01990000-0000-7000-8000-000000000002"),
    causation_source="tills",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    dataschema="urn:shieldtx:orders.placed:2",
)


def test_record_is_a_binary_mode_cloud_event_in_utc() -> None:
    record = cloudevents.encode(ORDER, PREFIX)
    assert record.topic == "shop.orders.commit"
    assert record.key == b"household-4"
    assert record.value == '{"id":17,"who":"Zoë"}'.encode()
    assert dict(record.headers) == {
        "content-type": b"application/json",
        "ce_specversion": b"1.0",
        "ce_id": b"01990000-0000-7000-8000-000000000001",
        "ce_type": b"orders.placed",
        "ce_source": b"orders",
        "ce_time": b"2026-03-01T10:30:00.250000+00:00",
        "ce_subject": b"17",
        "ce_partitionkey": b"household-4",
        "ce_txkind": b"COMMIT",
        "ce_operation": b"UPDATE",
        "ce_bizkey": b"17",
        "ce_causationid": b"01990000-0000-7000-8000-000000000002",
        "ce_causationsource": b"tills",
        "ce_traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "ce_dataschema": b"urn:shieldtx:orders.placed:2",
        "tenant": b"north",
    }
    assert len(record.headers) == 16


def test_missing_fields_of_an_event_are_not_headers() -> None:
    bare = Envelope(id=ORDER.id, type="t", source="s", topic="t", payload="null", time=ORDER.time)
    record = cloudevents.encode(bare, "")
    assert record.key is None
    assert {name for name, _ in record.headers} == {
        "content-type",
        "ce_specversion",
        "ce_id",
        "ce_type",
        "ce_source",
        "ce_time",
        "ce_txkind",
        "ce_operation",
    }


def test_rollback_goes_to_the_rollback_topic() -> None:
    record = cloudevents.encode(ORDER.evolve(kind=TxKind.ROLLBACK), PREFIX)
    assert record.topic == "shop.orders.rollback"


def test_subject_is_the_key_without_a_business_key() -> None:
    headers = dict(cloudevents.encode(ORDER.evolve(biz_key=None), PREFIX).headers)
    assert headers["ce_subject"] == b"household-4"
    assert "ce_bizkey" not in headers


@pytest.mark.parametrize("name", ["ce_time", "CE_mine", "content-type", "Content-Length"])
def test_user_header_under_a_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(EventRefused, match="reserved"):
        cloudevents.encode(ORDER.evolve(headers={name: "x"}), PREFIX)


def test_time_without_zone_is_refused() -> None:
    with pytest.raises(EventRefused, match="time zone") as refused:
        cloudevents.encode(ORDER.evolve(time=datetime(2026, 1, 1)), PREFIX)  # noqa: DTZ001
    assert refused.value.field == "time"


# --- records that may arrive --------------------------------------------------------------------

GOOD = received(cloudevents.encode(ORDER, PREFIX))


def with_header(name: str, value: bytes | None) -> ReceivedRecord:
    return GOOD._replace(headers=(*(h for h in GOOD.headers if h[0] != name), (name, value)))


def without_header(name: str) -> ReceivedRecord:
    return GOOD._replace(headers=tuple(h for h in GOOD.headers if h[0] != name))


def with_value(value: bytes | None) -> ReceivedRecord:
    return GOOD._replace(value=value)


REQUIRED = [
    "content-type",
    "ce_specversion",
    "ce_id",
    "ce_type",
    "ce_source",
    "ce_time",
    "ce_txkind",
    "ce_operation",
]


@pytest.mark.parametrize("name", ["ce_specversion", "ce_id", "ce_type", "ce_source"])
def test_missing_required_header_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(UndecodableRecord, match=f"{name}: the header is missing"):
        decoding.decode(without_header(name), PREFIX)


@pytest.mark.parametrize("name", [*REQUIRED, "ce_bizkey", "ce_causationid", "tenant"])
@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\x00b"])
def test_header_that_is_not_storable_is_refused_by_its_name(name: str, value: bytes) -> None:
    with pytest.raises(UndecodableRecord, match=name):
        decoding.decode(with_header(name, value), PREFIX)


OPTIONAL = [
    "ce_time",
    "ce_subject",
    "ce_bizkey",
    "ce_causationid",
    "ce_causationsource",
    "ce_traceparent",
    "ce_dataschema",
    "ce_dataref",
]


@pytest.mark.parametrize("name", [*sorted({*REQUIRED} - {*OPTIONAL}), "tenant"])
def test_required_header_without_a_value_is_refused(name: str) -> None:
    with pytest.raises(UndecodableRecord, match=f"header '{name}': has no value"):
        decoding.decode(with_header(name, None), PREFIX)


@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_attribute_without_a_value_is_missing(name: str) -> None:
    sent = {"timestamp": 1_767_225_600_000}
    expected = decoding.decode(without_header(name)._replace(**sent), PREFIX)
    assert decoding.decode(with_header(name, None)._replace(**sent), PREFIX) == expected


def test_keyless_event_may_have_an_empty_partitionkey() -> None:
    record = with_header("ce_partitionkey", None)._replace(key=None)
    assert decoding.decode(record, PREFIX) == ORDER.evolve(key=None)


@pytest.mark.parametrize("name", [*REQUIRED, "ce_bizkey", "ce_partitionkey"])
def test_doubled_shieldtx_header_is_refused(name: str) -> None:
    twice = GOOD._replace(headers=(*GOOD.headers, (name, dict(GOOD.headers)[name])))
    with pytest.raises(UndecodableRecord, match=f"{name}.*twice"):
        decoding.decode(twice, PREFIX)


def test_last_of_doubled_user_headers_counts() -> None:
    twice = GOOD._replace(headers=(*GOOD.headers, ("tenant", b"south")))
    assert decoding.decode(twice, PREFIX).headers == {"tenant": "south"}


def test_extensions_of_others_are_user_headers() -> None:
    more = GOOD._replace(headers=(*GOOD.headers, ("ce_dataref", b"x"), ("Ce_odd", b"y")))
    headers = {"tenant": "north", "dataref": "x"}
    assert decoding.decode(more, PREFIX) == ORDER.evolve(headers=headers)


def test_records_with_equal_first_headers_share_nothing_else() -> None:
    start = GOOD.headers[:5]
    for own in ("one", "other"):
        headers = (*start, (own, b"x"), *GOOD.headers[5:])
        assert decoding.decode(GOOD._replace(headers=headers), PREFIX).headers.keys() == {
            *ORDER.headers,
            own,
        }
    with pytest.raises(UndecodableRecord, match="ce_id: the header is missing"):
        decoding.decode(without_header("ce_id"), PREFIX)
    assert decoding.decode(GOOD, PREFIX) == ORDER


@pytest.mark.parametrize("order", range(len(GOOD.headers)))
def test_headers_may_come_in_any_order(order: int) -> None:
    turned = GOOD.headers[order:] + GOOD.headers[:order]
    assert decoding.decode(GOOD._replace(headers=turned), PREFIX) == ORDER


@pytest.mark.parametrize(
    "text",
    [
        "01990000-0000-7000-8000-00000000000A",
        "0199000-00000-7000-8000-000000000001",
        "01990000-0000-7000-8000-0000_0000001",
        "01990000-0000-7000-8000-00000000000 ",
        "+1990000-0000-7000-8000-000000000001",
        "0x990000-0000-7000-8000-000000000001",
        "01990000-0000-7000-8000-00000000000g",
        "01990000-0000-7000-8000-00000000000-",
        "01990000-0000-7000-8000-00000000000\u0661",
        "01990000000070008000000000000001",
    ],
)
def test_id_in_another_form_than_a_uuids_has_a_uuid_of_its_own(text: str) -> None:
    read = decoding.decode(with_header("ce_id", text.encode()), PREFIX)
    assert read.id == event_id_of("orders", text)
    assert read.id.version == 5
    assert read.headers == {"tenant": "north", EXTERNAL_ID: text}


def test_content_type_may_have_parameters() -> None:
    record = with_header("content-type", b"Application/JSON; charset=utf-8")
    assert decoding.decode(record, PREFIX) == ORDER


MALFORMED: Mapping[str, tuple[ReceivedRecord, str]] = {
    "a version from the future": (with_header("ce_specversion", b"2.0"), "ce_specversion"),
    "batched mode": (
        with_header("content-type", b"application/cloudevents-batch+json"),
        "content-type: batches",
    ),
    "structured mode in Avro": (
        with_header("content-type", b"application/cloudevents+avro"),
        "content-type: structured mode",
    ),
    "another content type": (with_header("content-type", b"application/xml"), "content-type"),
    "an empty id": (with_header("ce_id", b""), "ce_id: is empty"),
    "an unknown kind": (with_header("ce_txkind", b"PERHAPS"), "ce_txkind"),
    "a kind in small letters": (with_header("ce_txkind", b"commit"), "ce_txkind"),
    "an unknown operation": (with_header("ce_operation", b"UPSERT"), "ce_operation"),
    "a time without zone": (with_header("ce_time", b"2026-03-01T10:30:00"), "ce_time.*zone"),
    "a date": (with_header("ce_time", b"2026-03-01"), "ce_time"),
    "no time at all": (with_header("ce_time", b"yesterday"), "ce_time"),
    "a time before the first": (
        with_header("ce_time", b"0001-01-01T00:00:00+14:00"),
        "ce_time",
    ),
    "an empty type": (with_header("ce_type", b""), "ce_type.*empty"),
    "an empty source": (with_header("ce_source", b""), "ce_source.*empty"),
    "a long type": (with_header("ce_type", b"x" * 257), "ce_type: 257 bytes"),
    "a long source": (with_header("ce_source", b"x" * 257), "ce_source"),
    "a long business key": (with_header("ce_bizkey", b"x" * 1025), "ce_bizkey"),
    "a long trace context": (with_header("ce_traceparent", b"x" * 257), "ce_traceparent"),
    "a partition key of its own": (with_header("ce_partitionkey", b"else"), "ce_partitionkey"),
    "a partition key without key": (GOOD._replace(key=None), "ce_partitionkey"),
    "a key that is no UTF-8": (GOOD._replace(key=b"\xc3\x28"), "key"),
    "a key with NUL": (GOOD._replace(key=b"a\x00"), "key"),
    "a long key": (
        without_header("ce_partitionkey")._replace(key="ä".encode() * 513),
        "key: 1026 bytes",
    ),
    "the other kind's topic": (GOOD._replace(topic="shop.orders.rollback"), "topic"),
    "a topic without suffix": (GOOD._replace(topic="shop.orders"), "topic"),
    "a topic of another prefix": (GOOD._replace(topic="till.orders.commit"), "topic"),
    "a topic of nothing but prefix and suffix": (GOOD._replace(topic="shop..commit"), "topic"),
    "a tombstone": (with_value(None), "value.*tombstone"),
    "no payload": (with_value(b""), "value: is not JSON"),
    "text": (with_value(b"hello"), "value: is not JSON"),
    "half a document": (with_value(b'{"a":'), "value: is not JSON"),
    "two documents": (with_value(b"1 2"), "value: is not JSON"),
    "a payload that is no UTF-8": (with_value(b'"\xff"'), "value.*UTF-8"),
    "NaN": (with_value(b'{"a":NaN}'), "value: is not JSON"),
    "Infinity": (with_value(b"[-Infinity]"), "value: is not JSON"),
    "a number that reads as infinity": (with_value(b"[1e999]"), "value.*range"),
    "a signed exponent that does": (with_value(b'{"a":-1.5E+309}'), "value.*range"),
    "so many digits that they do": (with_value(b"[" + b"9" * 310 + b".5]"), "value.*range"),
    "an integer too long to read": (with_value(b"1" * 5000), "value: is not JSON"),
    "a NUL": (with_value(b'"\x00"'), "value.*NUL"),
    "an escaped NUL": (with_value(b'{"a":["x\\u0000y"]}'), "value.*NUL"),
    "an escaped NUL in a name": (with_value(b'{"\\u0000":1}'), "value.*NUL"),
    "a lone surrogate": (with_value(b'"\\ud800"'), "value: is not JSON"),
    "a bottomless list": (with_value(b"[" * 100_000), "value: is not JSON.*recursion"),
    "a bottomless object": (with_value(b'{"a":' * 100_000), "value: is not JSON.*recursion"),
    "a deep but proper list": (with_value(b"[" * 500 + b"]" * 500), "value.*recursion"),
    "a heavy payload": (with_value(b'"' + b"x" * (16 << 20) + b'"'), "value.*limit"),
    "headers without end": (
        GOOD._replace(headers=GOOD.headers + (("x", b""),) * 241),
        "headers: 257, the limit is 256",
    ),
    "a schema's long URI": (with_header("ce_dataschema", b"u" * 2_049), "ce_dataschema: 2049"),
    "a heavy header": (with_header("tenant", b"x" * 65_536), "headers: above the limit"),
    "a header's name with NUL": (with_header("te\x00nant", b"x"), "NUL"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_record_is_refused_by_the_name_of_its_part(what: str) -> None:
    record, malformed = MALFORMED[what]
    with pytest.raises(UndecodableRecord, match=malformed):
        decoding.decode(record, PREFIX)


@pytest.mark.parametrize(
    "value",
    [b'"\\\\u0000"', b"[1e308]", b"1E-999", b'"1e999"', b"[" * 150 + b"]" * 150, b" 1 "],
    ids=["escaped backslash", "large", "small", "text", "deep", "spaced"],
)
def test_valid_payload_that_looks_dangerous_is_unchanged(value: bytes) -> None:
    assert decoding.decode(with_value(value), PREFIX).payload == value.decode()


@pytest.mark.parametrize(
    "name",
    [
        "ce_specversion",
        "content-type",
        "ce_txkind",
        "ce_time",
        "ce_operation",
    ],
)
def test_value_of_a_header_is_not_in_the_reason(name: str) -> None:
    with pytest.raises(UndecodableRecord) as refused:
        decoding.decode(with_header(name, b"card 4111111111111111"), PREFIX)
    assert str(refused.value).startswith(f"{name}: is no")
    assert "(21 characters)" in str(refused.value)
    assert "4111" not in f"{refused.value} {refused.value.__cause__}"


# --- any records ---------------------------------------------------------------------------------

OWN_NAMES = sorted({name for name, _ in GOOD.headers})
anything = st.binary(max_size=40) | st.sampled_from(
    [b"1.0", b"COMMIT", b"application/json", str(ORDER.id).encode(), b"2026-03-01T10:30:00Z"]
)
foreign_records = st.builds(
    ReceivedRecord,
    topic=st.sampled_from(["shop.orders.commit", "shop.orders.rollback", "x", ""]) | st.text(),
    partition=st.just(0),
    offset=st.just(0),
    key=st.none() | anything,
    value=st.none() | anything | payloads.map(str.encode),
    headers=st.lists(
        st.tuples(st.sampled_from(OWN_NAMES) | st.text(max_size=10), st.none() | anything),
        max_size=20,
    ).map(tuple),
)


def _mutations() -> st.SearchStrategy[ReceivedRecord]:
    """Draw a good record with one part replaced: it gets further in the decoder than noise does."""

    def replaced(index: int, value: bytes | None) -> ReceivedRecord:
        headers = list(GOOD.headers)
        headers[index] = (headers[index][0], value)
        return GOOD._replace(headers=tuple(headers))

    header = st.builds(replaced, st.integers(0, len(GOOD.headers) - 1), st.none() | anything)
    value = st.builds(with_value, st.binary() | st.text().map(str.encode))
    key = st.builds(lambda k: without_header("ce_partitionkey")._replace(key=k), st.binary())
    topic = st.builds(lambda t: GOOD._replace(topic=t), st.text())
    return header | value | key | topic


def _decoded_or_refused(record: ReceivedRecord) -> None:
    try:
        envelope = decoding.decode(record, PREFIX)
    except UndecodableRecord:
        return
    # An accepted record can be passed on unchanged.
    assert decoding.decode(received(cloudevents.encode(envelope, PREFIX)), PREFIX) == envelope


@given(foreign_records)
@settings(max_examples=300)
def test_arbitrary_record_raises_nothing_but_the_refusal(record: ReceivedRecord) -> None:
    _decoded_or_refused(record)


@given(_mutations())
@settings(max_examples=500)
@example(with_header("ce_time", b"9999-12-31T23:59:59-14:00"))
def test_mutated_record_raises_nothing_but_the_refusal(
    record: ReceivedRecord,
) -> None:
    _decoded_or_refused(record)


def test_times_are_read_as_utc() -> None:
    read = decoding.decode(with_header("ce_time", b"2026-03-01T10:30:00.123456789Z"), PREFIX)
    assert read.time == datetime(2026, 3, 1, 10, 30, 0, 123_456, tzinfo=UTC)
    assert read.time.tzinfo is UTC
