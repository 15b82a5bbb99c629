"""Stories about topics: repetitions by relays, losses by brokers, and foreign records."""

from __future__ import annotations

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.reconcile.verdicts import Verdict
from tests.verification.oracle.healthy import applied_at_once, some_time, some_type
from tests.verification.oracle.history import History
from tests.verification.oracle.setting import unhandled_of
from tests.verification.oracle.timeline import DAY
from tests.verification.oracle.topic_logs import Forged, id_of

O, I, V = OutboxStatus, InboxStatus, Verdict  # noqa: E741  short, for what happens in stories
NO_TIMES = ("+200000-01-01T00:00:00Z", "now", "yesterday")
"""Values of a header that are not times; the first one is a time to Spark, but not to Python."""


def keys_are_used_for_days(h: History) -> None:
    """Some keys have events all the time, with any number of partitions."""
    event_type, groups = some_type(h)
    keys = [h.new_key() + f"-{number}" for number in range(h.random.randint(1, 3))]
    at = some_time(h)
    for number in range(h.random.randint(2, 5)):
        event = h.written(event_type, at, key=keys[number % len(keys)])
        h.sent(event, at)
        applied_at_once(h, event, groups, at)
        at += h.random.choice((5, 60, 700, DAY))


def is_sent_twice(h: History) -> None:
    """A relay ends between the acknowledgement and the settlement, and another one sends again."""
    event_type, groups = some_type(h)
    at = some_time(h)
    event = h.written(event_type, at, key=h.random.choice((None, h.new_key())))
    event.becomes(O.PROCESSING, at, attempts=1, lease_until=at + 1)
    again_at = at + h.random.choice((3, 3, 700, 2 * DAY))
    event.becomes(O.PROCESSING, again_at, attempts=2, lease_until=again_at + 1, unconfirmed=True)
    event.becomes(O.PROCESSED, again_at + 1)
    h.marks.sent[id_of(event)] = (at, again_at + 1)
    for group in groups:
        arrival = h.received(event, group, at)
        h.applied(arrival, at + 1)
        known = {"rows": (event, arrival), "arrival": arrival}
        h.say(V.STUCK, event, group, since=at + 1, until=again_at, moved=at + 1, **known)
        h.say(V.MATCHED, event, group, since=again_at + 1, **known)


def is_published_again(h: History) -> None:
    """A repair publishes an event again, long after later events of its key."""
    event_type, groups = some_type(h)
    at, key = some_time(h), h.new_key()
    again_at = at + h.random.choice((30, 300, DAY))
    event, other = (h.written(event_type, at + 5 * number, key=key) for number in (0, 1))
    h.sent(event, at)
    h.sent(other, at + 5)
    applied_at_once(h, other, groups, at + 5)
    for group in groups:
        arrival = h.received(event, group, at)
        h.applied(arrival, at)
        known = {"rows": (event, arrival), "arrival": arrival}
        h.say(V.MATCHED, event, group, since=at, until=again_at, **known)
        h.say(V.MATCHED, event, group, since=again_at + 2, **known)
    event.becomes(O.INIT, again_at, due_at=again_at, attempts=0, unconfirmed=True)
    event.becomes(O.PROCESSING, again_at + 1, attempts=1, lease_until=again_at + 2)
    event.becomes(O.PROCESSED, again_at + 2)


def broker_loses_a_record(h: History) -> None:
    """A topic lacks an acknowledged record, and the groups do too, or all have it."""
    _a_record_is_lost(h, some_time(h), waited=0)


def record_of_a_delayed_event_is_lost(h: History) -> None:
    """The same for an event that was written long before a night, and sent right before it."""
    waited = h.random.choice((700, DAY, 2 * DAY))
    night = int(h.random.choice(h.setting.nights).at)
    _a_record_is_lost(h, night - h.random.randint(1, 120) - waited, waited=waited)


def _a_record_is_lost(h: History, at: int, *, waited: int) -> None:
    event_type, groups = some_type(h)
    key = h.random.choice((None, h.new_key()))
    event = h.written(event_type, at, due=at + waited, waiting=waited > 0, key=key)
    h.sent(event, at + waited)
    h.marks.sent[id_of(event)] = ()
    if h.random.random() < 0.5:
        applied_at_once(h, event, groups, at + waited)
        return
    for group in groups:
        h.lacks(event, group, since=at + waited)


def record_is_forged(h: History) -> None:
    """A client sends a record under the source of a service, with any time."""
    event_type, _ = some_type(h)
    at = some_time(h)
    written_at = h.random.choice((at, at, at - 700, at - DAY, *NO_TIMES[:1]))
    _forge(h, event_type, at, written_at)


def record_has_no_time(h: History) -> None:
    """Such a record without a valid time."""
    event_type, _ = some_type(h)
    _forge(h, event_type, some_time(h), h.random.choice(NO_TIMES))


def old_record_is_forged(h: History) -> None:
    """Such a record, sent right before a night, with a time of the day before, or older."""
    event_type, _ = some_type(h)
    at = int(h.random.choice(h.setting.nights).at) - h.random.randint(1, 10)
    _forge(h, event_type, at, at - h.random.choice((60, 700, DAY, 4 * DAY, 8 * DAY)))


def _forge(h: History, event_type: str, at: float, written_at: float | str) -> None:
    h.marks.forged.append(
        Forged(
            topic=event_type.partition(".")[0],
            sent_at=at,
            event_id=h.new_id(at),
            key=h.random.choice((None, h.new_key())),
            event_type=event_type,
            written_at=written_at,
        )
    )


def rows_of_a_topic_are_lost(h: History) -> None:
    """A service loses all its rows on a topic for others; their records still exist."""
    if not h.setting.with_unhandled:
        record_is_forged(h)
        return
    event_type = unhandled_of(h.random.choice(h.setting.with_unhandled))
    # A configuration that lists the type does not name every topic with its events.
    topic = h.random.choice((event_type, f"{event_type}-aside"))
    at = some_time(h)
    lost_at = at + h.random.choice((60, DAY, 2 * DAY)) + 0.25
    for number in range(h.random.randint(1, 3)):
        event = h.written(event_type, at + number, topic=topic)
        h.sent(event, at + number)
        event.gone_at = lost_at


def order_is_inverted(h: History) -> None:
    """A record follows another whose event was written after this record was acknowledged."""
    _order_is_inverted(h, some_time(h))


def order_is_inverted_at_a_watermark(h: History) -> None:
    """The same where one arrived before the watermark of a night, and the other after it."""
    watermark = int(h.random.choice(h.setting.nights).watermark)
    _order_is_inverted(h, watermark - h.random.randint(5, 7))


def _order_is_inverted(h: History, at: int) -> None:
    event_type, groups = some_type(h)
    key = h.new_key()
    first = h.written(event_type, at, key=key)
    second = h.written(event_type, at + 4, key=key)
    h.sent(first, at + 1)
    h.sent(second, at + 5)
    h.marks.sent[id_of(first)] = (at + 8,)
    h.marks.inverted[id_of(first)] = id_of(second)
    applied_at_once(h, second, groups, at + 5)
    applied_at_once(h, first, groups, at + 8)


HEALTHY_ON_TOPICS = (keys_are_used_for_days, is_sent_twice, is_published_again)
DAMAGED_ON_TOPICS = (
    broker_loses_a_record,
    record_of_a_delayed_event_is_lost,
    record_is_forged,
    record_has_no_time,
    old_record_is_forged,
    rows_of_a_topic_are_lost,
    order_is_inverted,
    order_is_inverted_at_a_watermark,
)
ON_TOPICS = (*HEALTHY_ON_TOPICS, *DAMAGED_ON_TOPICS)
