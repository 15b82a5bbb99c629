"""Events, their ids, their shards and the names of their topics."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shieldtx import Event, Operation, TxKind, new_event_id
from shieldtx.domain.events import (
    Envelope,
    physical_topic,
    reason_of_rollback,
    rollback_of,
    shard_of,
    storable,
)

KEYS = st.text(st.characters(exclude_categories=["Cs"]))


def an_envelope() -> Envelope:
    return Envelope(
        id=new_event_id(),
        type="orders.placed",
        source="orders",
        topic="orders",
        payload='{"total":3}',
        time=datetime.now(UTC),
        kind=TxKind.ROLLBACK,
        operation=Operation.DELETE,
        key="customer-1",
        biz_key="order-1",
        headers={"tenant": "north"},
        causation_id=new_event_id(),
        causation_source="stock",
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )


def test_event_ids_are_increasing_uuids_of_version_7():
    ids = [new_event_id() for _ in range(1000)]
    assert {(i.version, i.variant) for i in ids} == {(7, "specified in RFC 4122")}
    assert all(earlier < later for earlier, later in pairwise(ids))


def test_event_id_starts_with_the_milliseconds_of_creation():
    before = time.time_ns() // 1_000_000
    made = new_event_id().int >> 80
    assert before <= made <= time.time_ns() // 1_000_000


def test_events_of_the_same_content_are_different_events():
    assert Event(type="t", payload=1).id != Event(type="t", payload=1).id


def test_event_and_its_default_headers_are_immutable():
    event = Event(type="t")
    with pytest.raises(FrozenInstanceError):
        event.key = "other"
    with pytest.raises(TypeError):
        event.headers["tenant"] = "north"


def test_opened_envelope_is_the_event_with_decoded_payload():
    envelope = an_envelope()
    event = envelope.opened({"total": 3}, attempt=2, max_attempts=5)
    assert event.payload == {"total": 3}
    assert (event.attempt, event.max_attempts) == (2, 5)
    assert event.external_id is None
    of_handlers = {"payload", "attempt", "max_attempts", "external_id", "reason"}
    for name in {f.name for f in fields(Event)} - of_handlers:
        assert getattr(event, name) == getattr(envelope, name), name


def test_evolved_envelope_differs_in_the_named_fields_only():
    envelope = an_envelope()
    evolved = envelope.evolve(key="customer-2")
    assert evolved.key == "customer-2"
    assert evolved.evolve(key=envelope.key) == envelope


@pytest.mark.parametrize(
    ("kind", "name"), [(TxKind.COMMIT, "eu.orders.commit"), (TxKind.ROLLBACK, "eu.orders.rollback")]
)
def test_topic_name_is_prefix_logical_name_and_kind(kind: TxKind, name: str):
    assert physical_topic("eu.", "orders", kind) == name


@given(KEYS, st.integers(min_value=1, max_value=32_768))
def test_key_has_one_shard_whatever_the_event(key: str, shards: int):
    shard = shard_of(key, new_event_id(), shards)
    assert 0 <= shard < shards
    assert shard == shard_of(key, new_event_id(), shards)


def test_shard_of_a_key_is_the_same_in_every_release():
    # Rows of earlier releases wait in these shards: a change would break the order of their keys.
    # The check value of CRC-32 (ISO 3309), and its value of the empty text.
    assert shard_of("123456789", new_event_id(), 2**32) == 0xCBF43926
    assert shard_of("", new_event_id(), 2**32) == 0
    known = {"customer-1": 61, "0b8d4c7e-6f0a-7cc3-98c4-dc0c0c07398f": 54, "šŧøçk": 24}
    assert {key: shard_of(key, new_event_id(), 64) for key in known} == known


def test_events_without_a_key_spread_over_all_shards():
    spread = Counter(shard_of(None, new_event_id(), 8) for _ in range(4000))
    assert set(spread) == set(range(8))
    assert max(spread.values()) < 2 * min(spread.values())


@given(st.text(st.characters()), st.integers(min_value=1, max_value=50))
def test_storable_text_fits_any_database_within_its_limit(text: str, limit: int):
    stored = storable(text, limit)
    assert len(stored) <= limit
    assert "\x00" not in stored
    assert stored.encode().decode() == stored


@given(KEYS.filter(lambda text: "\x00" not in text))
def test_harmless_text_is_storable_unchanged(text: str):
    assert storable(text, len(text)) == text


def test_event_of_a_payload_type_is_a_plain_event_at_run_time() -> None:
    event = Event[int](type="bookings.made", payload=1)
    assert type(event) is Event
    assert replace(event, payload=2).payload == 2


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ('{"reason":"sold out"}', "sold out"),
        ('{"reason":""}', ""),
        (json.dumps({"reason": "x" * 600}), "x" * 500),
        ('{"reason":7}', None),
        ('{"why":"sold out"}', None),
        ('["reason"]', None),
        ("null", None),
    ],
)
def test_reason_of_a_rollback_is_the_text_of_its_payload(payload: str, reason: str | None):
    assert reason_of_rollback(an_envelope().evolve(payload=payload)) == reason


def test_rollback_carries_its_reason():
    rollback = rollback_of(an_envelope(), source="stock", reason="sold out\x00")
    assert reason_of_rollback(rollback) == "sold out\N{REPLACEMENT CHARACTER}"
