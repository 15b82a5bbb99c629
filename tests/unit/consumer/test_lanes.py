"""How the events of a pass are divided into lanes."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from shieldtx.consumer.lanes import Share, divided
from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.ports.inbox import Attempt

KEYS = st.lists(st.sampled_from(["a", "b", "c", "d", None]), max_size=40)


def envelope(key: str | None, topic: str = "orders") -> Envelope:
    return Envelope(
        id=new_event_id(),
        type="orders.placed",
        source="orders",
        topic=topic,
        payload="{}",
        time=datetime.now(UTC),
        key=key,
    )


def attempt(key: str | None) -> Attempt:
    return Attempt(envelope=envelope(key), group="g", number=1, token=uuid4())


@given(attempts=KEYS, envelopes=KEYS, into=st.integers(1, 6))
def test_every_event_is_in_one_share_and_each_key_in_order(
    attempts: list[str | None], envelopes: list[str | None], into: int
) -> None:
    events = Share(
        attempts=[attempt(k) for k in attempts], envelopes=[envelope(k) for k in envelopes]
    )
    shares = divided(events, into=into)
    assert len(shares) <= into
    assert all(share.size for share in shares)
    assert sorted(a.envelope.id for s in shares for a in s.attempts) == sorted(
        a.envelope.id for a in events.attempts
    )
    assert sorted(e.id for s in shares for e in s.envelopes) == sorted(
        e.id for e in events.envelopes
    )
    lanes = defaultdict(set)
    for number, share in enumerate(shares):
        for key in [*(a.envelope.key for a in share.attempts), *(e.key for e in share.envelopes)]:
            if key is not None:
                lanes[key].add(number)
        for key in "abcd":
            ids = [a.envelope.id for a in share.attempts if a.envelope.key == key]
            assert ids == sorted(ids)
    assert all(len(numbers) == 1 for numbers in lanes.values())


def test_shares_have_about_the_same_size() -> None:
    events = Share(envelopes=[envelope(f"k{n % 10}") for n in range(100)])
    assert [share.size for share in divided(events, into=5)] == [20] * 5


def test_events_without_a_key_are_spread() -> None:
    events = Share(envelopes=[envelope(None) for _ in range(12)])
    assert [share.size for share in divided(events, into=4)] == [3] * 4


def test_a_key_of_another_topic_is_another_key() -> None:
    events = Share(envelopes=[envelope("k"), envelope("k", topic="refunds")])
    assert len(divided(events, into=2)) == 2


def test_one_lane_keeps_the_order_of_arrival() -> None:
    events = Share(envelopes=[envelope(key) for key in ("a", "b", "b", None, "a")])
    [share] = divided(events, into=1)
    assert share.envelopes == events.envelopes
