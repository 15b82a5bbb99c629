"""Signed rollbacks: without the secret, no process can write or change one."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import SecretStr

from shieldtx.brokers import decoding, signing
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import Operation, TxKind
from shieldtx.errors import UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord

PREFIX = "shop."
SECRET = "a secret of thirty-two bytes, at least"
KEY = SecretStr(SECRET)
OLD_KEY = SecretStr("the secret that was in use until now")

ROLLBACK = Envelope(
    id=UUID("01990000-0000-7000-8000-000000000002"),
    type="orders.placed",
    source="stock",
    topic="orders",
    payload='{"reason":"sold out"}',
    time=datetime(2026, 3, 1, 10, 30, tzinfo=UTC),
    kind=TxKind.ROLLBACK,
    key="household-4",
    biz_key="17",
    causation_id=UUID("01990000-0000-7000-8000-000000000001"),
    causation_source="orders",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


def sent(envelope: Envelope, *keys: SecretStr, prefix: str = PREFIX) -> ReceivedRecord:
    """Return the record of an envelope as a consumer would read it."""
    record = signing.encode(envelope, prefix, keys)
    return ReceivedRecord(
        topic=record.topic,
        partition=0,
        offset=0,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def with_headers(record: ReceivedRecord, **changes: bytes | None) -> ReceivedRecord:
    headers = {**dict(record.headers), **changes}
    return record._replace(headers=tuple((n, v) for n, v in headers.items() if v is not None))


def refusal(record: ReceivedRecord, *keys: SecretStr, prefix: str = PREFIX) -> str:
    with pytest.raises(UndecodableRecord) as caught:
        signing.decode(record, prefix, keys)
    return str(caught.value)


def test_signed_rollback_is_decoded_as_it_was_encoded() -> None:
    assert signing.decode(sent(ROLLBACK, KEY), PREFIX, [KEY]) == ROLLBACK


def test_signature_is_an_hmac_over_each_field_with_its_length() -> None:
    signed = (
        b"19:shieldtx rollback 1"
        b"20:shop.orders.rollback"
        b"36:01990000-0000-7000-8000-000000000002"
        b"5:stock"
        b"13:orders.placed"
        b"8:ROLLBACK"
        b"6:INSERT"
        b"25:2026-03-01T10:30:00+00:00"
        b"11:household-4"
        b"2:17"
        b"36:01990000-0000-7000-8000-000000000001"
        b"6:orders"
        b'21:{"reason":"sold out"}'
    )
    expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    headers = dict(sent(ROLLBACK, KEY).headers)
    assert headers["ce_signature"] == expected.encode()
    # No other part of the record is different.
    assert sent(ROLLBACK).headers == sent(ROLLBACK, KEY).headers[:-1]


def test_without_a_key_rollbacks_are_unsigned_and_accepted() -> None:
    assert "ce_signature" not in dict(sent(ROLLBACK).headers)
    assert signing.decode(sent(ROLLBACK), PREFIX) == ROLLBACK
    assert signing.decode(sent(ROLLBACK, KEY), PREFIX) == ROLLBACK


def test_commit_needs_no_signature() -> None:
    commit = ROLLBACK.evolve(kind=TxKind.COMMIT)
    record = sent(commit, KEY)
    assert "ce_signature" not in dict(record.headers)
    assert signing.decode(record, PREFIX, [KEY]) == commit


def test_rollback_without_a_signature_is_refused() -> None:
    assert refusal(sent(ROLLBACK), KEY) == "ce_signature: the header is missing from a rollback"
    empty = sent(ROLLBACK)._replace(headers=(*sent(ROLLBACK).headers, ("ce_signature", None)))
    assert refusal(empty, KEY) == "ce_signature: the header is missing from a rollback"


@pytest.mark.parametrize("forged", [b"", b"0" * 64, "é".encode(), b"0" * 9000])
def test_forged_signature_is_refused(forged: bytes) -> None:
    record = with_headers(sent(ROLLBACK, KEY), ce_signature=forged)
    assert "is not that of this record" in refusal(record, KEY)


def test_signature_with_another_key_is_refused() -> None:
    assert "is not that of this record" in refusal(sent(ROLLBACK, OLD_KEY), KEY)


def test_during_rotation_the_first_of_two_accepted_keys_signs() -> None:
    assert signing.decode(sent(ROLLBACK, OLD_KEY), PREFIX, [KEY, OLD_KEY]) == ROLLBACK
    assert signing.decode(sent(ROLLBACK, KEY, OLD_KEY), PREFIX, [KEY]) == ROLLBACK
    assert refusal(sent(ROLLBACK, KEY, OLD_KEY), OLD_KEY)


GENUINE = sent(ROLLBACK, KEY)
TAMPERED = {
    "id": with_headers(GENUINE, ce_id=b"01990000-0000-7000-8000-000000000003"),
    "source": with_headers(GENUINE, ce_source=b"billing"),
    "type": with_headers(GENUINE, ce_type=b"orders.changed"),
    "operation": with_headers(GENUINE, ce_operation=b"DELETE"),
    "time": with_headers(GENUINE, ce_time=b"2026-03-01T10:30:01+00:00"),
    "key": with_headers(GENUINE, ce_partitionkey=b"household-5")._replace(key=b"household-5"),
    "no key": with_headers(GENUINE, ce_partitionkey=None)._replace(key=None),
    "business key": with_headers(GENUINE, ce_bizkey=b"18"),
    "no business key": with_headers(GENUINE, ce_bizkey=None),
    "cause": with_headers(GENUINE, ce_causationid=b"01990000-0000-7000-8000-000000000009"),
    "no cause": with_headers(GENUINE, ce_causationid=None),
    "the cause's source": with_headers(GENUINE, ce_causationsource=b"tills"),
    "body": GENUINE._replace(value=b'{"reason":"sold  out"}'),
    "topic": GENUINE._replace(topic="shop.refunds.rollback"),
    "signature": with_headers(GENUINE, ce_signature=dict(GENUINE.headers)["ce_signature"][:-1]),
}


@pytest.mark.parametrize("part", TAMPERED)
def test_modified_rollback_is_refused(part: str) -> None:
    decoding.decode(TAMPERED[part], PREFIX)
    assert "is not that of this record" in refusal(TAMPERED[part], KEY)


def test_rollback_turned_into_a_commit_fits_no_topic() -> None:
    assert "does not fit the kind COMMIT" in refusal(
        with_headers(GENUINE, ce_txkind=b"COMMIT"), KEY
    )


def test_rollback_of_another_topic_prefix_is_refused() -> None:
    elsewhere = sent(ROLLBACK, KEY, prefix="staging.")._replace(topic=GENUINE.topic)
    assert "is not that of this record" in refusal(elsewhere, KEY)


def test_tracing_may_change_unsigned_headers() -> None:
    traced = with_headers(GENUINE, ce_traceparent=b"00-1-2-00", tenant=b"north")
    found = signing.decode(traced, PREFIX, [KEY])
    assert (found.traceparent, found.headers) == ("00-1-2-00", {"tenant": "north"})


texts = st.text(st.sampled_from("a1:-"), max_size=4)
twisted = st.fixed_dictionaries(
    {
        "key": st.none() | texts,
        "biz_key": st.none() | texts,
        "causation_source": st.none() | texts,
        "source": texts,
        "type": texts,
        "payload": texts,
        "operation": st.sampled_from(Operation),
    }
)


@given(twisted, twisted)
def test_two_rollbacks_never_have_the_same_signed_bytes(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assume(one != other)
    first, second = ROLLBACK.evolve(**one), ROLLBACK.evolve(**other)
    assert signing._signed_part(first, "t") != signing._signed_part(second, "t")


def test_secret_is_in_no_text() -> None:
    texts = [
        refusal(sent(ROLLBACK), KEY),
        refusal(sent(ROLLBACK, OLD_KEY), KEY),
        repr(partial(signing.encode, prefix=PREFIX, keys=(KEY,))),
        repr(sent(ROLLBACK, KEY)),
    ]
    assert all(SECRET not in text for text in texts)
