"""The behaviour of every broker through the ports, in memory and with Apache Kafka."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from kafka import KafkaAdminClient

from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection, KafkaSubscriber
from shieldtx.brokers.partitioning import partition_of
from shieldtx.embedded import EmbeddedKafka
from shieldtx.errors import BrokerError, BrokerUnavailable, TopicMissing
from shieldtx.ports.broker import (
    Broker,
    DeliveryOutcome,
    Publisher,
    ReceivedRecord,
    Record,
    Subscriber,
    TopicState,
)
from shieldtx.testing.memory_broker import MemoryBroker

BROKERS = ["memory", "kafka-python"]
# confluent-kafka only publishes: members of groups and topics use kafka-python with it, as tested
# here.
PUBLISHERS = [*BROKERS, "confluent-kafka"]
ACKNOWLEDGED, REJECTED = DeliveryOutcome.ACKNOWLEDGED, DeliveryOutcome.REJECTED
REFUSED, UNSENT, UNCONFIRMED = (
    DeliveryOutcome.REFUSED,
    DeliveryOutcome.UNSENT,
    DeliveryOutcome.UNCONFIRMED,
)


class Bench:
    """One broker; everything that a test opens on it is closed at the end of the test."""

    def __init__(self, broker: Broker, closing: ExitStack) -> None:
        self.broker = broker
        self._closing = closing
        self.admin = broker.topics()
        closing.callback(self.admin.close)

    def publisher(self) -> Publisher:
        publisher = self.broker.publisher()
        self._closing.callback(publisher.close)
        return publisher

    def subscriber(self, group: str, *topics: str) -> Subscriber:
        subscriber = self.broker.subscriber(group, list(topics))
        self._closing.callback(subscriber.close)
        return subscriber

    def topic(self, partitions: int = 3) -> str:
        """Make a topic that no other test uses."""
        name = f"t-{uuid.uuid4().hex}.commit"
        assert list(self.admin.create([name], partitions=partitions, replication=1)) == [name]
        return name


@pytest.fixture(params=BROKERS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "memory":
        broker: Broker = MemoryBroker()
    else:
        server: EmbeddedKafka = request.getfixturevalue("kafka")
        connection = KafkaConnection(bootstrap_servers=server.bootstrap)
        broker = KafkaBroker(connection, producer=request.param)
    with ExitStack() as closing:
        yield Bench(broker, closing)


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A broker for one test, which the test may stop."""

    bench: Bench
    go_down: Callable[[], None]
    come_back: Callable[[], None]


@pytest.fixture(scope="module")
def second_kafka() -> Iterator[EmbeddedKafka]:
    """A broker that may be stopped, and that would create each requested topic."""
    with EmbeddedKafka(settings={"auto.create.topics.enable": "true"}) as server:
        yield server


@pytest.fixture(params=BROKERS)
def outage(request: pytest.FixtureRequest) -> Iterator[Outage]:
    with ExitStack() as closing:
        if request.param == "memory":
            memory = MemoryBroker()
            yield Outage(
                bench=Bench(memory, closing),
                go_down=memory.go_down,
                come_back=memory.come_back,
            )
            return
        server: EmbeddedKafka = request.getfixturevalue("second_kafka")
        if server.pid is None:
            server.start()
        connection = KafkaConnection(bootstrap_servers=server.bootstrap)
        broker = KafkaBroker(connection, producer=request.param)
        yield Outage(bench=Bench(broker, closing), go_down=server.stop, come_back=server.start)


def group() -> str:
    return f"g-{uuid.uuid4().hex}"


def record(topic: str, value: str, key: str | None = "k") -> Record:
    return Record(topic=topic, key=None if key is None else key.encode(), value=value.encode())


def publish(publisher: Publisher, *records: Record, timeout: float = 20) -> list[DeliveryOutcome]:
    """Publish and return the outcomes; every outcome except ACKNOWLEDGED has a reason."""
    deliveries = publisher.publish(records, timeout=timeout)
    for delivery in deliveries:
        assert bool(delivery.reason) is (delivery.outcome is not ACKNOWLEDGED)
    return [delivery.outcome for delivery in deliveries]


def read(subscriber: Subscriber, count: int, *, limit: int = 500) -> list[ReceivedRecord]:
    """Poll until `count` records have arrived, and assert that no more arrived."""
    records: list[ReceivedRecord] = []
    deadline = time.monotonic() + 30
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        records += subscriber.poll(timeout=0.2, limit=limit)
    assert len(records) == count
    return records


def values(records: Sequence[ReceivedRecord]) -> list[str]:
    return [r.value.decode() for r in records if r.value is not None]


def by_partition(records: Sequence[ReceivedRecord]) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = defaultdict(list)
    for r in records:
        offsets[r.partition].append(r.offset)
    return offsets


for_each_publisher = pytest.mark.parametrize("bench", PUBLISHERS, indirect=True)
whoever_publishes = pytest.mark.parametrize("outage", PUBLISHERS, indirect=True)

# --- publishing -----------------------------------------------------------------------------------


@for_each_publisher
def test_records_of_a_key_are_in_the_order_of_publishing(bench: Bench) -> None:
    topic, publisher = bench.topic(), bench.publisher()
    sent = [record(topic, f"{key}-{n}", key=key) for n in range(40) for key in "abcdefg"]
    for start in range(0, len(sent), 100):
        assert set(publish(publisher, *sent[start : start + 100])) == {ACKNOWLEDGED}
    came = values(read(bench.subscriber(group(), topic), len(sent)))
    for key in "abcdefg":
        assert [v for v in came if v.startswith(key)] == [f"{key}-{n}" for n in range(40)]


@for_each_publisher
def test_acknowledgements_contain_partition_and_offset_if_asked(bench: Bench) -> None:
    topic, publisher = bench.topic(), bench.publisher()
    # More than one round: a batch of a partition is full before all records are sent.
    large = "x" * 3000
    sent = [record(topic, f"{n} {large}", key=f"k{n % 7}") for n in range(400)]
    for start in range(0, len(sent), 200):
        part = sent[start : start + 200]
        deliveries = publisher.publish(part, timeout=20, with_offsets=True)
        assert {d.outcome for d in deliveries} == {ACKNOWLEDGED}
        sent[start : start + 200] = [
            record(topic, f"{d.partition} {d.offset} {r.value.decode()}")
            for r, d in zip(part, deliveries, strict=True)
        ]
    came = read(bench.subscriber(group(), topic), len(sent))
    assert sorted(f"{r.partition} {r.offset} {r.value.decode()}" for r in came if r.value) == (
        sorted(r.value.decode() for r in sent)
    )


@for_each_publisher
def test_a_key_has_the_partition_that_the_java_client_gives_it(bench: Bench) -> None:
    topic = bench.topic(partitions=5)
    keys = [f"household-{n}" for n in range(30)]
    publish(bench.publisher(), *(record(topic, key, key=key) for key in keys))
    for r in read(bench.subscriber(group(), topic), len(keys)):
        assert r.key is not None
        assert r.partition == partition_of(r.key, 5)


@for_each_publisher
def test_records_without_key_reach_every_partition_over_time(bench: Bench) -> None:
    topic = bench.topic(partitions=3)
    heavy = [record(topic, "x" * 50_000, key=None) for _ in range(30)]
    assert set(publish(bench.publisher(), *heavy)) == {ACKNOWLEDGED}
    came = read(bench.subscriber(group(), topic), len(heavy))
    assert {r.partition for r in came} == {0, 1, 2}
    assert {r.key for r in came} == {None}


@for_each_publisher
def test_a_record_arrives_as_it_was_sent(bench: Bench) -> None:
    topic = bench.topic(partitions=1)
    headers = (("a", b"\x00\xff"), ("a", b"again"), ("\u00e4", b""))
    sent = [
        Record(topic=topic, key=b"\xff\x00", value=b"\x00\x01", headers=headers),
        Record(topic=topic, key=b"", value=b""),
    ]
    assert publish(bench.publisher(), *sent) == [ACKNOWLEDGED] * 2
    first, second = read(bench.subscriber(group(), topic), 2)
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
    assert (first.key, first.value, first.headers) == (b"\xff\x00", b"\x00\x01", headers)
    assert (second.offset, second.key, second.value, second.headers) == (1, b"", b"", ())


@for_each_publisher
def test_publish_without_records_returns_no_outcomes(bench: Bench) -> None:
    assert publish(bench.publisher(), timeout=0.001) == []


@for_each_publisher
def test_record_too_large_is_rejected_and_defers_only_its_key(bench: Bench) -> None:
    topic = bench.topic()
    sent = [
        record(topic, "before"),
        record(topic, "x" * 1_100_000),
        record(topic, "behind"),
        record(topic, "aside", key="other"),
        record(topic, "keyless", key=None),
    ]
    publisher = bench.publisher()
    expected = [ACKNOWLEDGED, REJECTED, DeliveryOutcome.DEFERRED, ACKNOWLEDGED, ACKNOWLEDGED]
    assert publish(publisher, *sent) == expected
    assert publish(publisher, sent[2]) == [ACKNOWLEDGED]
    came = values(read(bench.subscriber(group(), topic), 4))
    assert sorted(came) == ["aside", "before", "behind", "keyless"]
    assert came.index("before") < came.index("behind")


@for_each_publisher
def test_only_records_of_a_missing_topic_are_refused(bench: Bench) -> None:
    topic, missing = bench.topic(), f"missing-{uuid.uuid4().hex}.commit"
    publisher = bench.publisher()
    sent = [record(missing, "1"), record(topic, "2"), record(missing, "3", key="other")]
    assert publish(publisher, *sent) == [REFUSED, ACKNOWLEDGED, REFUSED]
    assert bench.admin.describe([missing]) == {missing: None}
    assert values(read(bench.subscriber(group(), topic), 1)) == ["2"]

    bench.admin.create([missing], partitions=1, replication=1)
    assert publish(publisher, sent[0], sent[2]) == [ACKNOWLEDGED] * 2


# --- reading --------------------------------------------------------------------------------------


def test_a_new_group_begins_with_the_oldest_record(bench: Bench) -> None:
    topic = bench.topic()
    publish(bench.publisher(), record(topic, "old"))
    assert values(read(bench.subscriber(group(), topic), 1)) == ["old"]


def test_a_group_reads_all_its_topics(bench: Bench) -> None:
    one, other = bench.topic(), bench.topic()
    publish(bench.publisher(), record(one, "1"), record(other, "2"))
    came = read(bench.subscriber(group(), one, other), 2)
    assert {(r.topic, r.value) for r in came} == {(one, b"1"), (other, b"2")}


def test_each_group_gets_every_record(bench: Bench) -> None:
    topic = bench.topic()
    publish(bench.publisher(), *(record(topic, str(n)) for n in range(5)))
    for _ in range(2):
        assert values(read(bench.subscriber(group(), topic), 5)) == list("01234")


def test_offsets_of_a_partition_are_consecutive_for_any_limit(bench: Bench) -> None:
    topic = bench.topic()
    sent = [record(topic, str(n), key=str(n)) for n in range(200)]
    publish(bench.publisher(), *sent)
    subscriber, records = bench.subscriber(group(), topic), []
    while len(records) < len(sent):
        batch = subscriber.poll(timeout=1, limit=7)
        assert len(batch) <= 7
        records += batch
    for offsets in by_partition(records).values():
        assert offsets == list(range(len(offsets)))


def test_poll_ends_with_the_record_that_reaches_its_byte_limit(bench: Bench) -> None:
    topic = bench.topic()
    publish(bench.publisher(), *(record(topic, str(n) * 1_000) for n in range(9)))
    subscriber, sizes = bench.subscriber(group(), topic), []
    while sum(sizes) < 9:
        batch = subscriber.poll(timeout=1, limit=500, limit_bytes=2_500)
        sizes += [len(batch)] * bool(batch)
    assert max(sizes) == 3
    subscriber.rewind([])
    again = bench.subscriber(group(), topic)
    came: list[ReceivedRecord] = []
    while len(came) < 9:
        batch = again.poll(timeout=1, limit=500, limit_bytes=1)
        assert len(batch) <= 1
        came += batch
    assert sorted(values(came)) == [str(n) * 1_000 for n in range(9)]


def test_a_poll_with_nothing_to_read_comes_back_in_time(bench: Bench) -> None:
    subscriber = bench.subscriber(group(), bench.topic())
    subscriber.poll(timeout=0, limit=10)
    started = time.monotonic()
    assert list(subscriber.poll(timeout=0.3, limit=10)) == []
    assert time.monotonic() - started < 3


def test_polls_without_wait_receive_records_too(
    bench: Bench, eventually: Callable[..., None]
) -> None:
    topic = bench.topic()
    publish(bench.publisher(), record(topic, "x"))
    subscriber = bench.subscriber(group(), topic)
    eventually(lambda: bool(subscriber.poll(timeout=0, limit=1)), "the record is read")


def test_only_uncommitted_records_are_delivered_again(bench: Bench) -> None:
    topic, members = bench.topic(partitions=2), group()
    publish(bench.publisher(), *(record(topic, str(n), key=str(n % 4)) for n in range(40)))
    first = bench.subscriber(members, topic)
    records = read(first, 40)
    kept = [r for r in records if r.offset < 5]
    first.commit(kept)
    first.close()
    again = read(bench.subscriber(members, topic), 40 - len(kept))
    assert min(r.offset for r in again) == 5


def test_commit_covers_earlier_records_of_its_partition(bench: Bench) -> None:
    topic, members = bench.topic(partitions=1), group()
    publish(bench.publisher(), *(record(topic, str(n)) for n in range(10)))
    first = bench.subscriber(members, topic)
    first.commit([read(first, 10)[6]])
    first.close()
    assert values(read(bench.subscriber(members, topic), 3)) == ["7", "8", "9"]


def test_empty_commit_is_accepted_before_the_first_poll(bench: Bench) -> None:
    subscriber = bench.subscriber(group(), bench.topic())
    subscriber.commit([])
    subscriber.rewind([])
    subscriber.commit([ReceivedRecord(topic="x", partition=0, offset=0, key=None, value=None)])


def test_only_rewound_records_are_delivered_again_in_order(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    publish(bench.publisher(), *(record(topic, str(n), key=str(n)) for n in range(60)))
    subscriber = bench.subscriber(group(), topic)
    records = read(subscriber, 60)
    late = [r for r in records if r.offset >= 10]
    subscriber.rewind(late)
    again = read(subscriber, len(late))
    assert by_partition(again) == by_partition(late)
    assert sorted(values(again)) == sorted(values(late))


def test_last_of_two_rewinds_sets_the_offset_of_a_partition(bench: Bench) -> None:
    topic = bench.topic(partitions=1)
    publish(bench.publisher(), *(record(topic, str(n)) for n in range(6)))
    subscriber = bench.subscriber(group(), topic)
    records = read(subscriber, 6)
    subscriber.rewind(records[2:])
    subscriber.rewind(records[4:])
    assert values(read(subscriber, 2)) == ["4", "5"]


def test_paused_partitions_are_left_out_until_they_are_resumed(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    publisher, subscriber = bench.publisher(), bench.subscriber(group(), topic)
    held = (topic, 0)
    subscriber.pause({held})
    sent = [record(topic, str(n), key=str(n)) for n in range(60)]
    publish(publisher, *sent)
    others = [r for r in sent if partition_of(r.key or b"", 2) == 1]
    first = read(subscriber, len(others), limit=7)
    assert {r.partition for r in first} == {1}
    assert not subscriber.poll(timeout=0.3, limit=60)
    assert subscriber.has_caught_up()

    subscriber.pause(set())
    assert not subscriber.has_caught_up()
    rest = read(subscriber, 60 - len(others), limit=7)
    assert {r.partition for r in rest} == {0}
    assert [r.offset for r in rest] == list(range(len(rest)))
    assert subscriber.has_caught_up()


def test_partition_paused_in_the_middle_continues_at_its_offset(bench: Bench) -> None:
    topic = bench.topic(partitions=1)
    publisher, subscriber = bench.publisher(), bench.subscriber(group(), topic)
    publish(publisher, *(record(topic, str(n)) for n in range(30)))
    read(subscriber, 10, limit=10)
    subscriber.pause({(topic, 0), ("somebody-else's", 7)})
    assert not subscriber.poll(timeout=0.3, limit=10)
    subscriber.pause({("somebody-else's", 7)})
    assert values(read(subscriber, 20, limit=10)) == [str(n) for n in range(10, 30)]


def test_paused_partitions_stay_paused_after_a_rebalance(bench: Bench) -> None:
    topic, members = bench.topic(partitions=4), group()
    places = {(topic, n) for n in range(4)}
    publish(bench.publisher(), *(record(topic, str(n), key=str(n)) for n in range(80)))
    stays, leaves = bench.subscriber(members, topic), bench.subscriber(members, topic)
    stays.pause(places - {(topic, 3)})
    leaves.pause(places)
    came = list(stays.poll(timeout=5, limit=100))
    deadline = time.monotonic() + 30
    until = time.monotonic() + 3
    while time.monotonic() < until:  # both join, and share the partitions
        assert not leaves.poll(timeout=0.1, limit=100)
        came += stays.poll(timeout=0.1, limit=100)
    leaves.close()
    of_three = [n for n in range(80) if partition_of(str(n).encode(), 4) == 3]
    while len({r.offset for r in came}) < len(of_three):
        assert time.monotonic() < deadline
        came += stays.poll(timeout=0.1, limit=100)
    assert {r.partition for r in came} == {3}

    stays.pause(set())
    rest: set[str] = set()
    while len(rest) < 80 - len(of_three):
        assert time.monotonic() < deadline
        rest |= {v for v in values(stays.poll(timeout=0.1, limit=100)) if int(v) not in of_three}


def test_member_has_caught_up_after_polling_every_record(bench: Bench) -> None:
    topic = bench.topic(partitions=3)
    publisher = bench.publisher()
    publish(publisher, *(record(topic, str(n), key=str(n)) for n in range(30)))
    subscriber = bench.subscriber(group(), topic)
    assert not subscriber.has_caught_up()

    read(subscriber, 30, limit=7)
    assert subscriber.has_caught_up()

    publish(publisher, record(topic, "one more"))
    assert not subscriber.has_caught_up()
    subscriber.rewind(read(subscriber, 1))
    assert not subscriber.has_caught_up()
    read(subscriber, 1)
    assert subscriber.has_caught_up()


def test_a_member_without_partitions_has_caught_up(bench: Bench) -> None:
    topic, members = bench.topic(partitions=1), group()
    publish(bench.publisher(), record(topic, "one"))
    busy, idle = bench.subscriber(members, topic), bench.subscriber(members, topic)
    read(busy, 1)

    deadline = time.monotonic() + 30
    while not idle.has_caught_up() or not busy.has_caught_up():
        assert time.monotonic() < deadline
        busy.commit(busy.poll(timeout=0.1, limit=10))
        idle.commit(idle.poll(timeout=0.1, limit=10))


def test_subscriber_of_a_missing_topic_names_the_topic(bench: Bench) -> None:
    topic, missing = bench.topic(), f"missing-{uuid.uuid4().hex}.commit"
    subscriber = bench.subscriber(group(), topic, missing)
    for _ in range(2):
        with pytest.raises(TopicMissing, match=missing):
            subscriber.poll(timeout=0.1, limit=1)
    bench.admin.create([missing], partitions=1, replication=1)
    publish(bench.publisher(), record(missing, "now"))
    assert values(read(subscriber, 1)) == ["now"]


def test_uncommitted_records_of_a_leaving_member_are_taken_over(bench: Bench) -> None:
    topic, members = bench.topic(), group()
    publisher = bench.publisher()
    publish(publisher, *(record(topic, f"a{n}", key=str(n)) for n in range(20)))
    leaving, heir = bench.subscriber(members, topic), bench.subscriber(members, topic)
    leaving.commit(read(leaving, 20))
    publish(publisher, *(record(topic, f"b{n}", key=str(n)) for n in range(20)))
    read(leaving, 20)
    leaving.close()
    assert sorted(values(read(heir, 20))) == sorted(f"b{n}" for n in range(20))


def test_two_members_share_the_partitions(bench: Bench) -> None:
    topic, members = bench.topic(partitions=4), group()
    publisher = bench.publisher()
    pair = bench.subscriber(members, topic), bench.subscriber(members, topic)
    shares: list[set[str]] = [set(), set()]
    keys = [str(n) for n in range(50)]
    deadline = time.monotonic() + 40

    def share_out(prefix: str) -> None:
        publish(publisher, *(record(topic, f"{prefix}-{key}", key=key) for key in keys))
        expected = {f"{prefix}-{key}" for key in keys}
        while not expected <= shares[0] | shares[1]:
            assert time.monotonic() < deadline, [len(share) for share in shares]
            for subscriber, share in zip(pair, shares, strict=True):
                batch = subscriber.poll(timeout=0.1, limit=500)
                share.update(values(batch))
                subscriber.commit(batch)

    rounds = 0
    while not all(shares):
        share_out(f"joining-{rounds}")
        rounds += 1
    shares[0].clear()
    shares[1].clear()
    share_out("joined")
    assert all(shares)
    assert shares[0].isdisjoint(shares[1])


def test_commit_by_the_former_owner_is_ignored(bench: Bench) -> None:
    topic, members = bench.topic(partitions=2), group()
    publisher = bench.publisher()
    publish(publisher, *(record(topic, str(n), key=str(n)) for n in range(40)))
    former, heir = bench.subscriber(members, topic), bench.subscriber(members, topic)
    records = read(former, 40)
    taken: list[ReceivedRecord] = []
    deadline = time.monotonic() + 40
    while not taken:
        assert time.monotonic() < deadline
        taken += heir.poll(timeout=0.1, limit=500)
        former.poll(timeout=0.1, limit=500)
    heir.commit(taken)
    lost = [r for r in records if r.partition == taken[0].partition]
    former.commit(lost[:1])
    former.rewind(lost)
    former.close()
    heir.close()
    left = read(bench.subscriber(members, topic), 40 - len(taken))
    assert {r.partition for r in left}.isdisjoint({r.partition for r in taken})


def test_partitions_added_later_are_read_too(bench: Bench, request: pytest.FixtureRequest) -> None:
    topic, members = bench.topic(partitions=1), group()
    if isinstance(bench.broker, MemoryBroker):
        subscriber = bench.subscriber(members, topic)
        subscriber.poll(timeout=0, limit=1)
        bench.broker.add_partitions(topic, 2)
    else:
        server: EmbeddedKafka = request.getfixturevalue("kafka")
        connection = KafkaConnection(bootstrap_servers=server.bootstrap)
        subscriber = KafkaSubscriber(
            connection, group=members, topics=[topic], metadata_max_age=0.5
        )
        request.addfinalizer(subscriber.close)
        publish(bench.publisher(), record(topic, "joined"))
        subscriber.commit(read(subscriber, 1))
        client = KafkaAdminClient(bootstrap_servers=server.bootstrap)
        client.create_partitions({topic: 3})
        client.close()
    publish(bench.publisher(), *(record(topic, str(n), key=str(n)) for n in range(30)))
    came = {}
    deadline = time.monotonic() + 60
    # A member that rejoins on a busy machine reads the uncommitted records again.
    while len(came) < 30 and time.monotonic() < deadline:
        came |= {r.value: r.partition for r in subscriber.poll(timeout=0.2, limit=500)}
    assert sorted(came, key=int) == [str(n).encode() for n in range(30)]
    assert set(came.values()) == {0, 1, 2}


# --- topics ---------------------------------------------------------------------------------------


def test_only_missing_topics_are_made_and_all_are_described(bench: Bench) -> None:
    there, new, nowhere = bench.topic(partitions=2), f"n-{uuid.uuid4().hex}", "no.where"
    made = bench.admin.create([there, new, new], partitions=5, replication=1)
    assert list(made) == [new]
    assert bench.admin.describe([there, new, nowhere]) == {
        there: TopicState(name=there, partitions=2, replication=1),
        new: TopicState(name=new, partitions=5, replication=1),
        nowhere: None,
    }
    assert bench.admin.describe([]) == {}


def test_topics_that_cannot_be_created_are_an_error(bench: Bench) -> None:
    with pytest.raises(BrokerError, match=r"0 partitions") as error:
        bench.admin.create([f"n-{uuid.uuid4().hex}"], partitions=0, replication=1)
    assert not isinstance(error.value, BrokerUnavailable)


# --- outages --------------------------------------------------------------------------------------


@whoever_publishes
def test_a_member_without_a_broker_gets_an_error_and_recovers(
    outage: Outage,
) -> None:
    topic = outage.bench.topic()
    outage.go_down()
    publisher, subscriber = (
        outage.bench.publisher(),
        outage.bench.subscriber(group(), topic),
    )
    sent = [record(topic, str(n)) for n in range(3)]
    assert publish(publisher, *sent, timeout=1) == [UNSENT] * 3
    with pytest.raises(BrokerUnavailable):
        subscriber.poll(timeout=0.1, limit=1)
    with pytest.raises(BrokerUnavailable):
        outage.bench.admin.describe([topic])
    outage.come_back()
    assert publish(publisher, *sent) == [ACKNOWLEDGED] * 3
    assert values(read(subscriber, 3)) == ["0", "1", "2"]
    assert outage.bench.admin.describe([topic])[topic] is not None


@whoever_publishes
def test_an_unreachable_broker_acknowledges_and_loses_nothing(outage: Outage) -> None:
    topic, publisher = outage.bench.topic(), outage.bench.publisher()
    assert publish(publisher, record(topic, "before")) == [ACKNOWLEDGED]
    outage.go_down()
    sent = [record(topic, str(n)) for n in range(3)]
    for _ in range(2):
        ended = publish(publisher, *sent, timeout=2)
        assert set(ended) <= {UNSENT, UNCONFIRMED}
    outage.come_back()
    assert publish(publisher, *sent) == [ACKNOWLEDGED] * 3
    came = values(read(outage.bench.subscriber(group(), topic), 4))
    assert came == ["before", "0", "1", "2"]


def test_polls_report_an_unreachable_broker_and_resume(
    outage: Outage, eventually: Callable[..., None]
) -> None:
    topic, members = outage.bench.topic(), group()
    publisher, subscriber = outage.bench.publisher(), outage.bench.subscriber(members, topic)
    publish(publisher, record(topic, "before"))
    subscriber.commit(read(subscriber, 1))
    outage.go_down()

    def is_away() -> bool:
        try:
            assert list(subscriber.poll(timeout=0.2, limit=1)) == []
        except BrokerUnavailable:
            return True
        return False

    eventually(is_away, "polls raise BrokerUnavailable", within=20)
    with pytest.raises(BrokerUnavailable):
        subscriber.poll(timeout=0.2, limit=1)
    outage.come_back()
    publish(publisher, record(topic, "after"))

    came: list[str] = []

    def is_back() -> bool:
        try:
            came.extend(values(subscriber.poll(timeout=0.2, limit=10)))
        except BrokerUnavailable:
            return False
        return bool(came)

    eventually(is_back, "polls return records again", within=40)
    assert came == ["after"]


def test_topics_are_not_auto_created_by_a_willing_broker(
    second_kafka: EmbeddedKafka,
) -> None:
    if second_kafka.pid is None:
        second_kafka.start()
    missing = f"missing-{uuid.uuid4().hex}"
    broker = KafkaBroker(KafkaConnection(bootstrap_servers=second_kafka.bootstrap))
    with ExitStack() as closing:
        bench = Bench(broker, closing)
        assert publish(bench.publisher(), record(missing, "x")) == [REFUSED]
        with pytest.raises(TopicMissing):
            bench.subscriber(group(), missing).poll(timeout=0.1, limit=1)
        assert bench.admin.describe([missing]) == {missing: None}
