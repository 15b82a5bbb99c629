"""Foreign topics: the declaration, and the events that a decoder makes of records."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from shieldtx import ConsumerGroup, Event, ForeignEvent, ForeignTopic, ReceivedRecord
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.external_ids import EXTERNAL_ID, event_id_of
from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError, UndecodableRecord

SENT_AT = datetime(2026, 3, 1, 10, 30, tzinfo=UTC)
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RECORD = ReceivedRecord(
    "legacy.orders",
    3,
    1711,
    b"customer-4",
    b'{"no":17}',
    (("traceparent", TRACE), ("x", None)),
    int(SENT_AT.timestamp() * 1000),
)
DEFAULT_ID = "legacy.orders/3/1711/c10e788e45da2442"
TYPES = ["legacy.order"]


def decode(record: ReceivedRecord) -> ForeignEvent | None:
    if record.value is None:
        return None
    return ForeignEvent(payload=json.loads(record.value))


def read(event: Any, record: ReceivedRecord = RECORD, types: list[str] = TYPES) -> Any:
    return ForeignTopic("legacy.orders", decode=lambda _: event).read(record, types)


def test_fields_left_out_by_a_decoder_are_those_of_the_record() -> None:
    found = ForeignTopic("legacy.orders", decode=decode).read(RECORD, TYPES)
    assert found is not None
    assert found.type == "legacy.order"
    assert found.source == "topic:legacy.orders"
    assert found.topic == "foreign:legacy.orders"
    assert found.id == event_id_of("topic:legacy.orders", DEFAULT_ID)
    assert found.headers == {EXTERNAL_ID: DEFAULT_ID}
    assert (found.key, found.biz_key, found.time) == ("customer-4", None, SENT_AT)
    assert (found.kind, found.payload) == (TxKind.COMMIT, '{"no":17}')
    assert found.traceparent == TRACE.decode()
    assert found.opened({}).external_id == DEFAULT_ID


def id_of(record: ReceivedRecord) -> Any:
    return read(ForeignEvent(payload=1), record).id


def test_record_that_is_read_again_has_the_same_default_id() -> None:
    # A parked record has no timestamp.
    assert id_of(RECORD._replace(timestamp=None)) == id_of(RECORD)


def test_records_of_a_recreated_topic_have_other_default_ids() -> None:
    records = [
        RECORD,
        RECORD._replace(value=b'{"no":18}'),
        RECORD._replace(value=None),
        RECORD._replace(value=b""),
        RECORD._replace(key=b"customer-5"),
        RECORD._replace(key=None),
        RECORD._replace(key=b"customer-4{", value=b'"no":17}'),
        RECORD._replace(offset=1712),
        RECORD._replace(partition=4),
    ]
    assert len({id_of(record) for record in records}) == len(records)


def test_fields_that_a_decoder_names_count() -> None:
    at = datetime(2026, 2, 1, 1, tzinfo=UTC)
    event = ForeignEvent(
        payload=[1],
        type="legacy.order.cancelled",
        id="A-4711",
        source="crm",
        key="k",
        biz_key="17",
        time=at,
        headers={"tenant": "north"},
    )
    found = read(event)
    assert (found.type, found.source) == ("legacy.order.cancelled", "crm")
    assert found.id == event_id_of("crm", "A-4711")
    assert (found.key, found.biz_key, found.time) == ("k", "17", at)
    assert found.headers == {"tenant": "north", EXTERNAL_ID: "A-4711"}


def test_record_that_the_decoder_leaves_out_is_no_event() -> None:
    topic = ForeignTopic("legacy.orders", decode=decode)
    assert topic.read(RECORD._replace(value=None), TYPES) is None


def fails(_: ReceivedRecord) -> ForeignEvent | None:
    raise KeyError("no")


def test_error_of_a_decoder_names_its_line() -> None:
    with pytest.raises(UndecodableRecord, match=r"decode: KeyError.*raised at .*in fails"):
        ForeignTopic("legacy.orders", decode=fails).read(RECORD, TYPES)


def test_missing_memory_is_no_fault_of_the_record() -> None:
    def exhausted(_: ReceivedRecord) -> ForeignEvent | None:
        raise MemoryError

    with pytest.raises(MemoryError):
        ForeignTopic("legacy.orders", decode=exhausted).read(RECORD, TYPES)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"payload": 1}, "returned a dict"),
        (ForeignEvent(payload=object()), "payload"),
        (ForeignEvent(payload=float("nan")), "payload"),
        (ForeignEvent(payload="\x00"), "payload"),
        (ForeignEvent(payload=1, id=""), "id: is empty"),
        (ForeignEvent(payload=1, id=17), "id: must be a text, not int"),  # type: ignore[arg-type]
        (ForeignEvent(payload=1, source=""), "source: is empty"),
        (ForeignEvent(payload=1, source="x" * 257), "source"),
        (ForeignEvent(payload=1, key="x" * 1025), "key"),
        (ForeignEvent(payload=1, biz_key="\x00"), "biz_key"),
        (ForeignEvent(payload=1, type="x" * 257), "type"),
        (ForeignEvent(payload=1, time=datetime(2026, 1, 1)), "time"),  # noqa: DTZ001
        (ForeignEvent(payload=1, headers={"ce_id": "x"}), "headers"),
        (ForeignEvent(payload=1, headers=["x"]), "headers"),  # type: ignore[arg-type]
        (ForeignEvent(payload=1, operation="INSERT"), "operation"),  # type: ignore[arg-type]
    ],
)
def test_event_that_cannot_be_stored_is_refused_by_its_field(event: Any, reason: str) -> None:
    with pytest.raises(UndecodableRecord, match=f"decode: .*{reason}"):
        read(event)


def test_type_is_required_where_the_group_handles_several() -> None:
    with pytest.raises(UndecodableRecord, match=r"type: the group handles several.*a, b"):
        read(ForeignEvent(payload=1), types=["b", "a"])


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250, "a:b"])
def test_name_that_no_topic_has_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a name of a topic"):
        ForeignTopic(name, decode=decode)


def test_coroutine_decoder_is_refused() -> None:
    async def decode_later(_: ReceivedRecord) -> ForeignEvent | None:
        return None

    with pytest.raises(ConfigurationError, match="decoder of foreign topic"):
        ForeignTopic("legacy.orders", decode=decode_later)  # type: ignore[arg-type]

    def hides_it(record: ReceivedRecord) -> Any:
        return decode_later(record)

    with pytest.raises(UndecodableRecord, match="a coroutine, whose code has not run"):
        ForeignTopic("t", decode=hides_it).read(RECORD, TYPES)


# --- in a group ----------------------------------------------------------------------------------


def handler(session: Session, event: Event) -> None:
    """Do nothing."""


@pytest.fixture
def group() -> ConsumerGroup:
    return ConsumerGroup("stock", EventTypeRegistry())


def test_several_types_come_from_one_foreign_topic(group: ConsumerGroup) -> None:
    topic = ForeignTopic("legacy.orders", decode=decode)
    group.handles("order.placed", topic=topic)(handler)
    group.handles("order.cancelled", topic=topic)(handler)
    assert group.subscriptions() == [("foreign:legacy.orders", TxKind.COMMIT)]
    assert group.types_of("foreign:legacy.orders") == ["order.placed", "order.cancelled"]


def test_two_decoders_of_one_foreign_topic_are_refused(group: ConsumerGroup) -> None:
    group.handles("order.placed", topic=ForeignTopic("legacy.orders", decode=decode))(handler)
    with pytest.raises(ConfigurationError, match="two decoders"):
        group.handles("order.cancelled", topic=ForeignTopic("legacy.orders", decode=fails))


def test_foreign_topic_has_no_compensation(group: ConsumerGroup) -> None:
    topic: Any = ForeignTopic("legacy.orders", decode=decode)
    with pytest.raises(ConfigurationError, match="no rollback events"):
        group.compensates("order.placed", topic=topic)


def test_type_of_another_producer_is_any_text_with_a_topic(group: ConsumerGroup) -> None:
    group.handles("com.example/order:created", topic="orders")(handler)
    assert group.subscriptions() == [("orders", TxKind.COMMIT)]
    for name in ("", "a\x00", "x" * 257):
        with pytest.raises(ConfigurationError, match="event type"):
            group.handles(name, topic="orders")
    with pytest.raises(ConfigurationError, match="event type"):
        group.handles("com.example/order:created")
    # A rollback goes to the topic of the type.
    with pytest.raises(ConfigurationError, match="event type"):
        group.handles("a/b", topic=ForeignTopic("legacy.orders", decode=decode))


def test_time_is_kept_in_utc() -> None:
    at = SENT_AT.astimezone(datetime.now(UTC).astimezone().tzinfo) + timedelta(hours=1)
    assert read(ForeignEvent(payload=1, time=at)).time.tzinfo is UTC
