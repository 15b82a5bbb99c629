"""Hypothesis strategies for records, texts and environments: good ones with one or more errors."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import strategies as st

from shieldtx.brokers import cloudevents
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import Operation, TxKind
from shieldtx.ports.broker import ReceivedRecord, Record

PREFIX = "shop."
INJECTIONS = (
    'x"; DROP TABLE shield_outbox; --',
    "x'; DROP TABLE shield_inbox; --",
    "'; SELECT pg_sleep(60); --",
    "$$; DROP SCHEMA public CASCADE; --",
    "%s%(of_group)s:of_group",
    "{0.__class__}",
    "${jndi:ldap://127.0.0.1/x}",
    "../../etc/passwd",
    "\x1b[2J\x1b]0;owned\x07",
    "a\r\n2026-01-01T00:00:00.000+00:00 ERROR   shieldtx: forged",
    "\u202egnp.exe",
    "\ufeff",
    "\U0001f4a3" * 40,
    "NULL",
    "NaN",
    "-1",
    "",
    " ",
)

GOOD = Envelope(
    id=UUID("01990000-0000-7000-8000-00000000000a"),
    type="orders.placed",
    source="orders",
    topic="orders.placed",
    payload='{"n":1}',
    time=datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
    key="a",
    biz_key="order-1",
    headers={"tenant": "north"},
    causation_id=UUID("01990000-0000-7000-8000-00000000000b"),
    causation_source="tills",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


def received(record: Record, *, offset: int = 0) -> ReceivedRecord:
    """Return the record as a consumer reads it."""
    return ReceivedRecord(
        topic=record.topic,
        partition=0,
        offset=offset,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


injections = st.sampled_from(INJECTIONS)
texts = injections | st.text(max_size=60)
values = (
    st.binary(max_size=60)
    | texts.map(lambda text: text.encode(errors="surrogatepass"))
    | st.builds(lambda unit, times: unit * times, st.binary(max_size=3), st.integers(0, 1500))
)
header_names = (
    st.sampled_from([name for name, _ in cloudevents.encode(GOOD, PREFIX).headers])
    | st.sampled_from(["ce_", "CE_ID", "Content-Type", "content-", "", "te\x00nant", "\udcff"])
    | texts
)
times = st.sampled_from(
    [
        "0001-01-01T00:00:00Z",
        "0001-01-01T23:59:59-00:01",
        "0000-00-00T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T00:00:00+23:59",
        "10000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-06-30T23:59:60Z",
        "2026-W10-7T01:02:03,5+00:00:00.000001",
        "20260301T103000Z",
        "2026-03-01T10:30:00\u202fZ",
        "1e9",
        "infinity",
        "now",
    ]
)
versions = st.sampled_from(["1.0", "1.1", "1.0.1", "0.3", "2.0", "1", "1.0 ", "v1.0", "\uff11.0"])
ids = st.uuids().map(str) | st.sampled_from(
    [
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "01990000000070008000000000000001",
        "urn:uuid:01990000-0000-7000-8000-000000000001",
        "01990000-0000-7000-8000-00000000000g",
        "\uff10" * 32,
    ]
)
plausible = (
    times | versions | ids | st.sampled_from([*TxKind, *Operation, cloudevents.CONTENT_TYPE])
)

topics = st.sampled_from(
    ["shop..commit", "shop.commit", ".commit", "orders.placed.commit", "shop.orders.placed.half"]
) | st.from_regex(r"\A[A-Za-z0-9._-]{1,249}\Z")
"""Names that the broker accepts."""

json_numbers = st.sampled_from(
    [
        *("1e308", "1e309", "-1E+400", "1e00000400", "-0", "0.1e-400"),
        *(f"1{'0' * 400}.5", f"1{'0' * 250}e99", "9" * 4300, "9" * 4301),
        *("NaN", "-Infinity", "00", "1.", "0x10"),
    ]
)
json_strings = st.sampled_from(
    [
        *('"\\u0000"', '"\\\\u0000"', '"\x00"', '"\\x00"'),
        *('"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\ud800"'),
        *('"\x7f"', '"\t"', '"unended'),
    ]
)
json_texts = st.recursive(
    json_numbers | json_strings | st.sampled_from(["null", "true", "tru", "", " ", "//", "1 2"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
        | st.lists(inner, max_size=3).map(
            lambda parts: "{" + ",".join(f'"k":{part}' for part in parts) + "}"
        )
        | st.builds(
            lambda part, depth: "[" * depth + part + "]" * depth, inner, st.integers(1, 250)
        )
    ),
    max_leaves=6,
).map(lambda text: text.encode(errors="surrogatepass"))


_edits = st.lists(
    st.tuples(
        st.sampled_from(["drop", "replace", "add", "double"]),
        st.integers(0, 14),
        header_names,
        st.none() | values | plausible.map(str.encode),
    ),
    max_size=3,
)
_unchanged = st.just(Ellipsis)


def _edited(
    headers: list[tuple[str, bytes | None]], edits: list[tuple[str, int, str, bytes | None]]
) -> tuple[tuple[str, bytes | None], ...]:
    for edit, index, name, value in edits:
        place = index % len(headers)
        match edit:
            case "drop":
                del headers[place]
            case "replace":
                headers[place] = (headers[place][0], value)
            case "double":
                headers.append(headers[place])
            case _:
                headers.insert(place, (name, value))
    return tuple(headers)


def _record(id, kind, biz_key, edits, value, key, topic) -> ReceivedRecord:
    envelope = GOOD.evolve(id=id, kind=kind, biz_key=biz_key)
    record = received(cloudevents.encode(envelope, PREFIX))
    record = record._replace(headers=_edited([*record.headers], edits))
    if value is not ...:
        record = record._replace(value=value)
    if key is not ...:
        rest = tuple(header for header in record.headers if header[0] != "ce_partitionkey")
        record = record._replace(key=key, headers=rest)
    return record if topic is ... else record._replace(topic=topic)


records = st.builds(
    _record,
    id=st.uuids(),
    kind=st.sampled_from(TxKind),
    biz_key=st.sampled_from([None, "b"]),
    edits=_edits,
    value=_unchanged | st.none() | values | json_texts,
    key=_unchanged | st.none() | values,
    topic=_unchanged | _unchanged | _unchanged | topics,
)
"""A good record after some edits: it gets further in the decoder than noise does."""
