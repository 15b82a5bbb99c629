"""Tests that a topic with records is read although no outbox has a row of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from shieldtx.brokers.kafka.topic_offsets import TopicOffsetReader
from shieldtx.domain.events import new_event_id
from shieldtx.errors import BrokerError
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.request import EVERYTHING, BrokerAccess, Selection
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.nights import a_day_passes, mode
from tests.spark.planting import TOPIC
from tests.spark.publishing import Topic

pytestmark = pytest.mark.thorough

DAY = 24 * 60
AUDITED = "orders.audited"
RESERVE = ExpectedGroup(name="reserve", topics=(TOPIC,))
CLEAN, NOT_JUDGED, MISMATCHES = RunOutcome.CLEAN, RunOutcome.NOT_JUDGED, RunOutcome.MISMATCHES


@pytest.fixture
def placed(kafka, orders, stock) -> Topic:
    """Plant three events in order on a topic; orders also writes for other services."""
    topic = Topic(kafka.bootstrap, logical=TOPIC).make()
    sent = [orders.write(age=DAY) for _ in range(3)]
    for event_id in sent:
        stock.receive(event_id, group="reserve", source="orders", age=DAY)
    publish(topic, sent)
    return topic


@pytest.fixture
def audited(orders, placed) -> Topic:
    """Plant three events for other services, on a topic of their own."""
    topic = of_prefix(placed, AUDITED).make()
    publish(topic, [orders.write(age=DAY, topic=AUDITED, event_type=AUDITED) for _ in range(3)])
    return topic


def of_prefix(other: Topic, logical: str) -> Topic:
    topic = Topic(other.connection.bootstrap_servers, logical=logical)
    topic.name = topic.name.replace(topic.prefix, other.prefix)
    topic.prefix = other.prefix
    return topic


def publish(topic: Topic, ids, **given) -> None:
    written = datetime.now(UTC) - timedelta(minutes=DAY)
    fields = {"key": None, "time": written, "type": topic.logical, **given}
    topic.publish_at(written, *[topic.event(id=event_id, **fields) for event_id in ids])


def run(nights, orders, stock, placed, *, others=(AUDITED,), groups=(RESERVE,), **of):
    broker = BrokerAccess(bootstrap=placed.connection.bootstrap_servers, topic_prefix=placed.prefix)
    services = orders.database(others=others), stock.database(groups=groups)
    return nights.run(*services, broker=broker, **of)


def lose(orders, topic: str) -> None:
    with orders.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM shield_outbox WHERE topic = '{topic}'"))


@pytest.mark.parametrize("is_known", [True, False], ids=["read before", "never read before"])
def test_topic_for_others_without_any_row_prevents_a_clean_run(
    nights, orders, stock, placed, audited, is_known
):
    if is_known:
        assert run(nights, orders, stock, placed).outcome is CLEAN
    lose(orders, AUDITED)

    for _ in range(2):
        night = run(nights, orders, stock, placed)

        assert (night.outcome, night.problems) == (MISMATCHES, ())
        assert night.totals[Verdict.RECORD_WITHOUT_ROW] == 3


def test_topic_of_an_earlier_run_is_read_without_any_row(nights, orders, stock, placed):
    """The type is for other services, whatever its topic, so the topic is not named."""
    topic = of_prefix(placed, "orders").make()
    sent = [orders.write(age=DAY, topic="orders", event_type=AUDITED) for _ in range(3)]
    publish(topic, sent)
    assert run(nights, orders, stock, placed).outcome is CLEAN
    lose(orders, "orders")

    # Each run knows the topics of earlier runs, however few rows it selects.
    for selection in (None, EVERYTHING):
        night = run(nights, orders, stock, placed, selection=selection)

        assert (night.outcome, night.totals[Verdict.RECORD_WITHOUT_ROW]) == (MISMATCHES, 3)


def test_topic_without_rows_and_records_is_in_order(nights, orders, stock, placed, audited):
    assert run(nights, orders, stock, placed).outcome is CLEAN
    lose(orders, AUDITED)
    audited.delete_before(3)

    for _ in range(2):
        assert run(nights, orders, stock, placed).outcome is CLEAN
        a_day_passes(orders)


def test_a_topic_for_others_that_does_not_exist_yet_is_in_order(nights, orders, stock, placed):
    others = (AUDITED, "none", "no topic has such a name!")

    night = run(nights, orders, stock, placed, others=others)

    assert (night.outcome, night.problems) == (CLEAN, ())


def test_deleted_topic_is_reported_once(nights, orders, stock, placed, audited):
    assert run(nights, orders, stock, placed).outcome is CLEAN
    lose(orders, AUDITED)
    audited.delete()

    night = run(nights, orders, stock, placed)

    assert night.outcome is NOT_JUDGED
    (told,) = night.problems
    assert told.startswith(f"topic {audited.name}, which an earlier run has read, does not exist")
    assert run(nights, orders, stock, placed).outcome is CLEAN


def test_topic_is_kept_by_a_run_without_an_answer_of_the_broker(nights, orders, stock, placed):
    topic = of_prefix(placed, "orders").make()
    publish(topic, [orders.write(age=DAY, topic="orders", event_type=AUDITED) for _ in range(3)])
    assert run(nights, orders, stock, placed).outcome is CLEAN
    lose(orders, "orders")
    services = orders.database(others=(AUDITED,)), stock.database(groups=(RESERVE,))
    nowhere = BrokerAccess(bootstrap="127.0.0.1:1", topic_prefix=placed.prefix)
    assert nights.run(*services, broker=nowhere).outcome is NOT_JUDGED

    night = run(nights, orders, stock, placed)

    assert night.totals[Verdict.RECORD_WITHOUT_ROW] == 3


@pytest.mark.parametrize("days", [1, None], ids=["a day", "for ever"])
def test_gap_of_a_service_that_sends_for_others_is_reported(nights, kafka, services, days):
    orders, stock, mail = services
    placed = Topic(kafka.bootstrap, logical=TOPIC).make()
    event = orders.write(age=DAY)
    stock.receive(event, group="reserve", source="orders", age=DAY)
    publish(placed, [event])
    purged = mail.database(retention=days and timedelta(days=days), others=("mail.sent",))
    window = Selection(
        written_since=orders.now() - timedelta(days=4),
        written_until=orders.now() - timedelta(days=2),
    )
    broker = BrokerAccess(bootstrap=placed.connection.bootstrap_servers, topic_prefix=placed.prefix)

    night = nights.run(orders.database(), stock.database(), purged, broker=broker, selection=window)

    told = [problem.partition(" that")[0] for problem in night.problems]
    assert (night.outcome, told) == ((NOT_JUDGED, ["events of mail"]) if days else (CLEAN, []))


def test_topic_of_a_removed_service_is_kept_and_not_asked_for(nights, kafka, services, monkeypatch):
    orders, stock, mail = services
    placed = Topic(kafka.bootstrap, logical=TOPIC).make()
    event = orders.write(age=DAY)
    stock.receive(event, group="reserve", source="orders", age=DAY)
    publish(placed, [event])
    topic = of_prefix(placed, "mail.sent").make()
    of_mail = {"topic": "mail.sent", "event_type": "mail.sent"}
    event = mail.write(age=DAY, **of_mail)
    stock.receive(event, group="sent", source="mail", age=DAY, **of_mail)
    publish(topic, [event], source="mail")
    broker = BrokerAccess(bootstrap=placed.connection.bootstrap_servers, topic_prefix=placed.prefix)
    three = [each.database() for each in services]
    assert nights.run(*three, broker=broker).outcome is CLEAN

    def refused(ask):
        def asked(reader, topics):
            if topic.name in topics:
                raise BrokerError(f"{topic.name}: not authorised")
            return ask(reader, topics)

        return asked

    with monkeypatch.context() as patched:
        for name in ("existing", "ends"):
            patched.setattr(TopicOffsetReader, name, refused(getattr(TopicOffsetReader, name)))
        for looked_at in (Mode.FULL, Mode.INCREMENTAL, Mode.INCREMENTAL):
            night = nights.run(*three[:2], broker=broker)

            assert (night.outcome, night.problems) == (CLEAN, ())
            assert mode(night) is looked_at
            a_day_passes(orders)
    lose(mail, "mail.sent")

    night = nights.run(*three, broker=broker)

    assert night.totals[Verdict.RECORD_WITHOUT_ROW] == 1


def test_topic_with_records_is_read_without_the_other_service(nights, kafka, services):
    """The rows of its records had been purged before the first run."""
    orders, stock, mail = services
    placed = Topic(kafka.bootstrap, logical=TOPIC).make()
    event = orders.write(age=DAY)
    stock.receive(event, group="reserve", source="orders", age=DAY)
    publish(placed, [event])
    publish(placed, [new_event_id()], source="mail")
    broker = BrokerAccess(bootstrap=placed.connection.bootstrap_servers, topic_prefix=placed.prefix)
    of_mail = mail.database(retention=timedelta(hours=12))
    three = of_mail, orders.database(), stock.database()
    assert nights.run(*three, broker=broker).outcome is CLEAN
    lost = placed.event(id=new_event_id(), key=None, time=mail.now(), type=TOPIC, source="mail")
    placed.publish_at(mail.now() - timedelta(hours=5), lost)

    night = nights.run(replace(stock.database(), other_sources=("orders",)), of_mail, broker=broker)

    assert night.totals[Verdict.RECORD_WITHOUT_ROW] == 1
