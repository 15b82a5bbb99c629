"""CloudEvents of other producers: the official SDK, both modes, and whatever is legal."""

from __future__ import annotations

import base64
import json
import string
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from cloudevents.core.bindings import kafka as sdk
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1 import kafka as old_sdk
from cloudevents.v1.http import CloudEvent as OldCloudEvent
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shieldtx.brokers import cloudevents, decoding, signing
from shieldtx.domain.events import Envelope, rollback_of
from shieldtx.domain.external_ids import EXTERNAL_CAUSATION_ID, EXTERNAL_ID, event_id_of
from shieldtx.domain.states import Operation, TxKind
from shieldtx.errors import EventRefused, UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord, Record
from tests.unit.brokers.test_cloudevents import ORDER

TOPIC = "orders.commit"
SENT_AT = datetime(2026, 3, 1, 10, 30, tzinfo=UTC)
ATTRIBUTES = {"id": "A-4711", "source": "/legacy", "type": "orders.placed"}
STRUCTURED = (("content-type", b"application/cloudevents+json; charset=UTF-8"),)


def received(
    value: bytes | None, *headers: tuple[str, bytes], key: bytes | None = None, topic: str = TOPIC
) -> ReceivedRecord:
    timestamp = int(SENT_AT.timestamp() * 1000)
    return ReceivedRecord(topic, 0, 7, key, value, headers, timestamp)


def of_sdk(message: Any) -> ReceivedRecord:
    """Return a message of either version of the SDK as Kafka delivers it."""
    key = message.key.encode() if isinstance(message.key, str) else message.key
    return received(message.value, *message.headers.items(), key=key)


def read(record: ReceivedRecord) -> Envelope:
    return decoding.decode(record, "")


def binary(**attributes: str) -> tuple[tuple[str, bytes], ...]:
    whole = {"specversion": "1.0"} | ATTRIBUTES | attributes
    return tuple((f"ce_{name}", text.encode()) for name, text in whole.items())


def structured(**members: Any) -> ReceivedRecord:
    whole = {"specversion": "1.0"} | ATTRIBUTES | members
    return received(json.dumps(whole).encode(), *STRUCTURED)


# --- the official SDK ----------------------------------------------------------------------------

PAYLOAD = {"id": 17, "who": "Zoë", "amount": "12.50"}
WANTED = Envelope(
    id=event_id_of("/legacy", "A-4711"),
    type="orders.placed",
    source="/legacy",
    topic="orders",
    payload=json.dumps(PAYLOAD),
    time=SENT_AT,
    key="household-4",
    headers={EXTERNAL_ID: "A-4711", "tenant": "north", "subject": "order 17"},
)
EXTRAS = {"partitionkey": "household-4", "tenant": "north", "subject": "order 17"}


def same_but_for_spaces(found: Envelope) -> Envelope:
    return found.evolve(payload=json.dumps(json.loads(found.payload)))


@pytest.mark.parametrize("write", [sdk.to_binary, sdk.to_structured])
def test_event_of_the_sdk_is_read(write: Any) -> None:
    attributes = ATTRIBUTES | EXTRAS | {"time": SENT_AT, "datacontenttype": "application/json"}
    message = write(CloudEvent(attributes, PAYLOAD), JSONFormat())
    assert same_but_for_spaces(read(of_sdk(message))) == WANTED


@pytest.mark.parametrize("write", [sdk.to_binary, sdk.to_structured])
def test_event_of_the_sdk_with_required_attributes_only_is_read(write: Any) -> None:
    message = write(CloudEvent({**ATTRIBUTES, "specversion": "1.0"}, None), JSONFormat())
    found = read(of_sdk(message))
    assert (found.id, found.key, found.kind) == (WANTED.id, None, TxKind.COMMIT)
    assert found.operation is Operation.INSERT
    assert json.loads(found.payload) is None
    # The SDK fills in the present time.
    assert found.time.tzinfo is UTC


@pytest.mark.parametrize("write", [old_sdk.to_binary, old_sdk.to_structured])
@pytest.mark.parametrize("content_type", [{"datacontenttype": "application/json"}, {}])
def test_event_of_the_sdks_first_version_is_read(write: Any, content_type: dict[str, str]) -> None:
    attributes = ATTRIBUTES | EXTRAS | {"time": SENT_AT.isoformat()} | content_type
    if write is old_sdk.to_binary:
        # Its binary mode requires the attribute.
        attributes |= {"datacontenttype": "application/json"}
    message = write(OldCloudEvent(attributes, PAYLOAD))
    assert message.headers.get("content-type") in {None, b"application/json"}
    assert same_but_for_spaces(read(of_sdk(message))) == WANTED


def test_record_of_shieldtx_is_read_by_the_sdk() -> None:
    record = cloudevents.encode(ORDER, "")
    message = sdk.KafkaMessage(headers=dict(record.headers), key=record.key, value=record.value)
    event = sdk.from_kafka(message, JSONFormat())
    assert event.get_id() == str(ORDER.id)
    assert event.get_source() == "orders"
    assert event.get_type() == "orders.placed"
    assert event.get_time() == ORDER.time
    assert event.get_subject() == "17"
    assert event.get_datacontenttype() == "application/json"
    assert event.get_dataschema() == "urn:shieldtx:orders.placed:2"
    assert event.get_data() == {"id": 17, "who": "Zoë"}
    extensions = {"partitionkey", "txkind", "operation", "bizkey", "causationid", "traceparent"}
    assert event.get_extension("partitionkey") == "household-4"
    assert extensions <= event.get_attributes().keys()
    old = old_sdk.from_binary(old_sdk.KafkaMessage(message.headers, record.key, record.value))
    assert (old["id"], old["source"], old.data) == (str(ORDER.id), "orders", event.get_data())


# --- ids -----------------------------------------------------------------------------------------


def test_uuid_of_another_producer_stays() -> None:
    found = read(received(b"{}", *binary(id=str(ORDER.id))))
    assert (found.id, found.headers) == (ORDER.id, {})


def test_id_has_the_documented_uuid() -> None:
    # UUIDv5 in the namespace of the documentation, of the bytes `7:/legacyA-4711`.
    assert str(event_id_of("/legacy", "A-4711")) == "968744b1-6200-50c6-a959-8f16f39a30be"


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
@example(("a", "b1"), ("ab", "1"))
@example(("s", "\u00e9"), ("s", "e\u0301"))
@example(("s", "A-1"), ("s", "a-1"))
@example(("s", "11:x"), ("s1", "1:x"))
@example(("s", str(ORDER.id).replace("1", "a")), ("s", str(ORDER.id).replace("1", "A")))
def test_different_ids_have_different_uuids(one: tuple[str, str], other: tuple[str, str]) -> None:
    try:
        ids = event_id_of(*one), event_id_of(*other)
    except UnicodeEncodeError:
        return  # a lone surrogate, which no record contains
    assert (ids[0] == ids[1]) == (one == other)


def test_handler_sees_the_producers_id() -> None:
    event = read(structured(tenant="north")).opened({})
    assert event.external_id == "A-4711"
    # So that a handler can copy them to an event of its own.
    assert event.headers == {"tenant": "north"}
    assert ORDER.opened({}).external_id is None


def test_rollback_names_the_producers_id() -> None:
    original = read(structured(partitionkey="k"))
    rollback = rollback_of(original, source="stock", reason="sold out")
    record = signing.encode(rollback, "", [KEY])
    headers = dict(record.headers)
    assert headers["ce_causationid"] == b"A-4711"
    assert headers["ce_causationsource"] == b"/legacy"
    # A service of shieldtx finds the event under the same UUID, and the signature fits.
    arrived = ReceivedRecord(record.topic, 0, 0, record.key, record.value, record.headers)
    found = signing.decode(arrived, "", [KEY])
    assert found.causation_id == original.id
    assert found == rollback


def test_foreign_topic_is_never_written() -> None:
    original = read(structured()).evolve(topic="foreign:legacy.orders")
    with pytest.raises(EventRefused, match="foreign topic"):
        cloudevents.encode(original, "shop.")
    rollback = rollback_of(original, source="stock", reason="sold out")
    assert cloudevents.encode(rollback, "shop.").topic == "shop.orders.placed.rollback"


# --- kinds, causes, traces, keys -----------------------------------------------------------------

KEY = signing.SecretStr("k" * 32)


def test_kind_is_that_of_the_topic() -> None:
    commit = received(b"{}", *binary())
    rollback = received(b"{}", *binary(causationid=str(ORDER.id)), topic="orders.rollback")
    assert read(commit).kind is TxKind.COMMIT
    assert read(rollback).kind is TxKind.ROLLBACK
    assert read(rollback).causation_id == ORDER.id


def test_rollback_without_its_event_is_refused() -> None:
    with pytest.raises(UndecodableRecord, match="ce_causationid: is missing"):
        read(received(b"{}", *binary(), topic="orders.rollback"))
    with pytest.raises(UndecodableRecord, match=r"ce_causationid.*ce_causationsource"):
        read(received(b"{}", *binary(causationid="A-1"), topic="orders.rollback"))


def test_rollback_without_signature_is_refused_in_both_modes() -> None:
    value = {"specversion": "1.0", **ATTRIBUTES, "causationid": str(ORDER.id)}
    for record in (
        received(b"{}", *binary(causationid=str(ORDER.id)), topic="orders.rollback"),
        received(json.dumps(value).encode(), *STRUCTURED, topic="orders.rollback"),
    ):
        assert decoding.decode(record, "").kind is TxKind.ROLLBACK
        with pytest.raises(UndecodableRecord, match="ce_signature"):
            signing.decode(record, "", [KEY])


def test_cause_is_any_text() -> None:
    found = read(structured(causationid="A-1", causationsource="/legacy"))
    assert found.causation_id == event_id_of("/legacy", "A-1")
    assert found.headers[EXTERNAL_CAUSATION_ID] == "A-1"
    alone = read(structured(causationid="call 17"))
    assert (alone.causation_id, alone.headers["causationid"]) == (None, "call 17")


def test_cause_in_capitals_is_an_event_of_the_reader() -> None:
    capitals = "018F3C6E-0000-7000-8000-00000000000A"
    cause = {"causationid": capitals, "causationsource": "shop"}
    for record in (received(b"{}", *binary(**cause)), structured(**cause)):
        record = record._replace(topic="orders.rollback")  # noqa: PLW2901  of either mode
        found = signing.decode(record, "", reader="shop")
        assert str(found.causation_id) == capitals.lower()
        assert EXTERNAL_CAUSATION_ID not in found.headers
        # Another producer may have events whose ids differ in capitals only.
        other = signing.decode(record, "", reader="stock")
        assert other.causation_id == event_id_of("shop", capitals)


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_trace_of_opentelemetry_is_read() -> None:
    plain = (("traceparent", TRACE.encode()), ("tracestate", b"a=b"))
    found = read(received(b"{}", *binary(), *plain))
    assert found.traceparent == TRACE
    assert found.headers["tracestate"] == "a=b"
    other = TRACE.replace("0af", "1af")
    assert read(received(b"{}", *binary(traceparent=other), *plain)).traceparent == other
    assert read(received(b"{}", *binary(), ("traceparent", b"none"))).traceparent is None


@pytest.mark.parametrize(
    ("key", "partition_key", "expected"),
    [
        (b"a", None, "a"),
        (b"a", "b", "a"),
        (None, "b", "b"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x07", None, "base64:AAAAAAAAAAc="),
        (b"\xff", None, "base64:/w=="),
        (None, None, None),
    ],
)
def test_key_is_that_of_the_record(
    key: bytes | None, partition_key: str | None, expected: str | None
) -> None:
    more = {} if partition_key is None else {"partitionkey": partition_key}
    assert read(received(b"{}", *binary(**more), key=key)).key == expected


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_header_of_another_producer_is_any_bytes(mode: str) -> None:
    more: Any = (("x", b"\xff\xfe"), ("nul", b"a\x00"), ("none", None), ("y", "é".encode()))
    record = received(b"{}", *binary()) if mode == "binary" else structured()
    for headers in (record.headers + more, more + record.headers):
        found = read(record._replace(headers=headers)).headers
        assert found == {
            EXTERNAL_ID: "A-4711",
            "x": "base64://4=",
            "nul": "base64:YQA=",
            "y": "é",
        }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, b"\xff\xfe") for name in ("ce_tenant", "ce_subject")),
        *((name, b"\xff\xfe") for name in ("content-type", "content-encoding")),
        *((name, None) for name in ("ce_id", "ce_type", "content-type", "content-encoding")),
    ],
)
def test_attribute_of_another_producer_is_a_text(name: str, value: bytes | None) -> None:
    headers = tuple(h for h in binary() if h[0] != name)
    with pytest.raises(UndecodableRecord, match=name):
        read(received(b"{}", *headers)._replace(headers=(*headers, (name, value))))


@pytest.mark.parametrize("name", ["ce_tenant", "ce_subject", "ce_time", "ce_dataschema"])
def test_attribute_without_a_value_is_missing(name: str) -> None:
    headers = binary(bizkey="17")
    empty = received(b"{}", *headers)._replace(headers=((name, None), *headers))
    assert read(empty) == read(received(b"{}", *headers))


def test_time_defaults_to_the_timestamp_of_the_record() -> None:
    assert read(received(b"{}", *binary())).time == SENT_AT
    before = datetime.now(UTC)
    for timestamp in (None, -1, 10**18):
        assert read(received(b"{}", *binary())._replace(timestamp=timestamp)).time >= before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-01t10:30:00z", SENT_AT),
        ("2026-03-01T10:29:60Z", SENT_AT),
        ("2026-03-01T12:30:00.000+02:00", SENT_AT),
    ],
)
def test_time_has_any_form_of_rfc_3339(text: str, expected: datetime) -> None:
    assert read(received(b"{}", *binary(time=text))).time == expected


# --- data ----------------------------------------------------------------------------------------


def test_data_keeps_its_digits() -> None:
    text = '{"specversion":"1.0","id":"1","source":"/x","type":"t", "data" : {"a":1.10,"b":12345678901234567890.123456789} }'  # noqa: E501
    found = read(received(text.encode(), *STRUCTURED))
    assert found.payload == '{"a":1.10,"b":12345678901234567890.123456789}'


def test_json_in_base64_is_read() -> None:
    found = read(structured(data_base64=base64.b64encode(b'{"a": 1}').decode()))
    assert found.payload == '{"a": 1}'


@pytest.mark.parametrize("value", [b"", None])
def test_event_without_data_has_the_payload_null(value: bytes | None) -> None:
    assert read(received(value, *binary())).payload == "null"


@pytest.mark.parametrize(
    "content_type", [b"application/vnd.shop+json", b"text/json; charset=utf-8"]
)
def test_other_names_of_json_are_read(content_type: bytes) -> None:
    assert read(received(b"{}", ("content-type", content_type), *binary())).payload == "{}"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (structured(data_base64=base64.b64encode(b"\x00\x01").decode()), "value"),
        (structured(data_base64="?"), "data_base64: is not Base64"),
        (structured(data_base64=1), "data_base64: is not Base64"),
        (structured(data=1, data_base64=""), "both"),
        (structured(datacontenttype="text/plain", data="x"), "datacontenttype"),
        (structured(specversion="0.3"), "ce_specversion: is not 1.0"),
        (structured(id=None), "ce_id"),
        (structured(tenant={"a": 1}), "attribute 'tenant'"),
        (structured(tenant="a\x00"), "value: holds a NUL"),
        (structured(tenant="x" * 70_000), "limits"),
        (received(b"[]", *STRUCTURED), "not an object"),
        (received(None, *STRUCTURED), "there is none"),
        (received(b"\xff", *STRUCTURED), "UTF-8"),
        (received(b'"' + b"x" * (16 << 20) + b'"', *STRUCTURED), "limit"),
        (received(b"<a/>", ("content-type", b"application/xml"), *binary()), "content-type"),
        (received(b"[]", ("content-type", b"application/cloudevents-batch+json")), "batches"),
    ],
)
def test_event_that_cannot_be_handled_is_refused_with_its_reason(
    record: ReceivedRecord, reason: str
) -> None:
    with pytest.raises(UndecodableRecord, match=reason):
        read(record)


# --- whatever is legal ---------------------------------------------------------------------------

# CloudEvents forbids control characters, surrogates and noncharacters in texts.
texts = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn"]), max_size=40)
filled = texts.filter(bool)
OURS = {name.removeprefix("ce_") for name in decoding._OURS} | {"data", "traceparent"}
extension_names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=20).filter(
    lambda name: name not in OURS
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
times = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda time: time.isoformat().replace("+00:00", "Z")
)
legal = st.fixed_dictionaries(
    {"id": filled, "source": filled, "type": filled},
    optional={
        "time": times,
        "subject": filled,
        "dataschema": filled,
        "partitionkey": filled,
        "causationid": filled,
        "causationsource": filled,
    },
)
extensions = st.dictionaries(extension_names, filled, max_size=4)


@given(
    legal, extensions, st.none() | json_values, st.none() | st.binary(max_size=20), st.booleans()
)
@settings(max_examples=300)
def test_legal_event_is_read(
    attributes: dict[str, str], more: dict[str, str], data: Any, key: bytes | None, whole: bool
) -> None:
    if whole:
        members = {"specversion": "1.0", **attributes, **more, "data": data}
        record = received(json.dumps(members).encode(), *STRUCTURED, key=key)
    else:
        record = received(json.dumps(data).encode(), *binary(**attributes, **more), key=key)
    found = read(record)
    assert found.id == event_id_of(attributes["source"], attributes["id"])
    assert (found.source, found.type) == (attributes["source"], attributes["type"])
    assert json.loads(found.payload) == data
    assert more.items() <= found.headers.items()
    assert found.opened(data).external_id in {attributes["id"], None}
    # It can be passed on: the record of shieldtx names the same event.
    passed = cloudevents.encode(found, "")
    assert read(ReceivedRecord(TOPIC, 0, 0, passed.key, passed.value, passed.headers)) == found


parts = st.binary(max_size=60) | st.sampled_from(
    [b"1.0", b"application/cloudevents+json", b"application/json", b"{}", b"null", b"COMMIT"]
)
members = st.dictionaries(
    st.sampled_from(["specversion", "id", "source", "type", "time", "data", "data_base64"]) | texts,
    json_values | st.just("1.0"),
    max_size=8,
)


@given(
    st.none() | parts | members.map(lambda found: json.dumps(found).encode()),
    st.lists(
        st.tuples(
            st.sampled_from(["content-type", "ce_id", "ce_source", "ce_specversion", "ce_type"])
            | st.text(max_size=8),
            st.none() | parts,
        ),
        max_size=8,
    ),
    st.none() | st.binary(max_size=8),
)
@settings(max_examples=500)
@example(b'{"specversion":"1.0"', [STRUCTURED[0]], None)
@example(b'{"specversion":"1.0","":1,"\\u0000":2}', [STRUCTURED[0]], None)
def test_any_bytes_are_read_or_refused(
    value: bytes | None, headers: list[tuple[str, bytes | None]], key: bytes | None
) -> None:
    record = ReceivedRecord(TOPIC, 0, 0, key, value, tuple(headers))
    try:
        found = read(record)
    except UndecodableRecord:
        return
    assert isinstance(found.id, UUID)
    assert isinstance(cloudevents.encode(found, ""), Record)
