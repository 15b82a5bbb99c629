"""Events go into the transaction of the caller, however the caller opened it, or nowhere."""

from __future__ import annotations

import pytest
from sqlalchemy import event, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from shieldtx import Event, EventRefused, TxKind, new_event_id
from shieldtx.errors import TransactionRefused, UnknownEventType
from shieldtx.outbox.causation import handling
from tests.support.write_side_shop import Order, Shop

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def placed(key: str = "a", **fields) -> Event:
    return Event(type="order.placed", key=key, **fields)


def write_and_fail(shop: Shop) -> None:
    with shop.session() as session, session.begin():
        session.add(Order(id=2))
        shop.outbox.add(session, placed("gone"))
        _ = 1 / 0


def test_a_commit_makes_data_and_event_visible_together(shop: Shop):
    with shop.session() as session:
        session.add(Order(id=1))
        shop.outbox.add(session, placed())
        assert (shop.orders(), shop.events()) == ([], [])
        session.commit()
    assert (shop.orders(), shop.events()) == ([1], ["a"])


def test_begin_block_commits_both_or_neither(shop: Shop):
    with shop.session() as session, session.begin():
        session.add(Order(id=1))
        shop.outbox.add(session, placed("kept"))
    with pytest.raises(ZeroDivisionError):
        write_and_fail(shop)
    assert (shop.orders(), shop.events()) == ([1], ["kept"])


def test_a_rollback_makes_neither_visible(shop: Shop):
    with shop.session() as session:
        session.add(Order(id=1))
        shop.outbox.add(session, placed())
        session.rollback()
    assert (shop.orders(), shop.events()) == ([], [])


def test_on_a_connection_the_event_shares_the_fate_of_the_data(shop: Shop):
    with shop.engine.begin() as connection:
        connection.execute(insert(Order).values(id=1))
        shop.outbox.add(connection, placed("kept"))
    with shop.engine.connect() as connection:
        shop.outbox.add(connection, placed("gone"))
        connection.execute(insert(Order).values(id=2))
        connection.rollback()
    with shop.engine.connect() as connection:
        shop.outbox.add(connection, placed("closed"))
    assert (shop.orders(), shop.events()) == ([1], ["kept"])


def test_an_event_alone_is_a_transaction_too(shop: Shop):
    with shop.session() as session:
        shop.outbox.add(session, placed("session"))
        session.commit()
    with shop.engine.connect() as connection:
        shop.outbox.add(connection, placed("connection"))
        connection.commit()
    assert shop.events() == ["session", "connection"]


def test_events_of_a_transaction_are_one_insert_after_the_data(shop: Shop):
    with shop.session() as session, shop.statements() as statements:
        shop.outbox.add_all(session, [placed("a"), placed("b")])
        session.add(Order(id=1))
        session.flush()
        shop.outbox.add(session, placed("c"))
        session.execute(insert(Order).values(id=2))
        shop.outbox.add(session, placed("d"))
        session.commit()
    tables = [s.split()[2] for s in statements if s.startswith("INSERT")]
    assert tables == ["orders", "orders", "shield_outbox"]
    assert shop.events() == ["a", "b", "c", "d"]


def test_one_invalid_event_among_several_refuses_them_all(shop: Shop):
    with shop.session() as session:
        with pytest.raises(EventRefused):
            shop.outbox.add_all(session, [placed("a"), placed("b", payload={1.5: object()})])
        assert shop.outbox.add_all(session, []) == []
        session.commit()
    with shop.engine.begin() as connection:
        assert shop.outbox.add_all(connection, []) == []
    assert shop.events() == []


def test_session_takes_events_in_consecutive_transactions(shop: Shop):
    with shop.session() as session:
        for name, ending in [("a", "commit"), ("b", "rollback"), ("c", "commit"), ("d", "close")]:
            shop.outbox.add(session, placed(name))
            getattr(session, ending)()
        with session.begin():
            shop.outbox.add(session, placed("e"))
    assert shop.events() == ["a", "c", "e"]


def test_session_without_autobegin_is_refused_until_it_begins(shop: Shop):
    with shop.session(autobegin=False) as session:
        with pytest.raises(TransactionRefused, match=r"call session\.begin"):
            shop.outbox.add(session, placed("early"))
        with session.begin():
            shop.outbox.add(session, placed("begun"))
    assert shop.events() == ["begun"]


def test_scoped_session_stands_for_its_session(shop: Shop):
    scoped = scoped_session(sessionmaker(shop.engine))
    shop.outbox.add(scoped, placed())
    scoped.commit()
    scoped.remove()
    assert shop.events() == ["a"]


@pytest.mark.parametrize("transaction", [None, "connection", object()])
def test_argument_that_is_not_a_transaction_is_refused_by_type(shop: Shop, transaction):
    with pytest.raises(TransactionRefused, match=f"not on a {type(transaction).__name__}"):
        shop.outbox.add(transaction, placed())


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "create_savepoint"])
@pytest.mark.parametrize("outer", ["commit", "rollback"])
@pytest.mark.parametrize("inner", ["commit", "close"])
def test_session_on_a_connection_follows_the_outer_transaction(shop: Shop, mode, outer, inner):
    with shop.engine.connect() as connection:
        transaction = connection.begin()
        with Session(bind=connection, join_transaction_mode=mode) as session:
            session.add(Order(id=1))
            session.flush()
            shop.outbox.add(session, placed())
            getattr(session, inner)()
        getattr(transaction, outer)()
    assert shop.events() == ["a"] * len(shop.orders())
    if outer == "rollback":
        assert shop.orders() == []


def test_failed_flush_discards_its_events(shop: Shop):
    with shop.session() as session:
        session.add(Order(id=1, note="same"))
        session.commit()
        shop.outbox.add(session, placed("gone"))
        session.add(Order(id=2, note="same"))
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        shop.outbox.add(session, placed("kept"))
        session.commit()
    assert (shop.orders(), shop.events()) == ([1], ["kept"])


@pytest.mark.parametrize("hook", ["before_flush", "after_flush", "before_commit"])
@pytest.mark.parametrize("alone", [True, False])
def test_events_added_by_a_listener_of_the_session_are_written(shop: Shop, hook, alone):
    class Hooked(Session):
        """A class of its own, for listeners that run before the listeners of an instance."""

    event.listen(Hooked, hook, lambda session, *_: shop.outbox.add(session, placed("hook")))
    with Hooked(shop.engine) as session:
        if not alone:
            shop.outbox.add(session, placed("body"))
        session.add(Order(id=1))
        session.commit()
    assert shop.orders() == [1]
    assert shop.events() == (["hook"] if alone else ["body", "hook"])


def test_event_follows_a_commit_on_the_sessions_connection(shop: Shop):
    with shop.session() as session:
        session.add(Order(id=1))
        session.flush()
        shop.outbox.add(session, placed("body"))
        session.connection().commit()
    assert (shop.orders(), shop.events()) == ([1], ["body"])


def test_a_business_key_is_written_once_per_event_type(shop: Shop):
    with shop.session() as session:
        shop.outbox.add(session, placed(biz_key="order-1"))
        session.commit()
        shop.outbox.add(session, Event(type="order.paid", biz_key="order-1"))
        session.commit()
        session.add(Order(id=1))
        shop.outbox.add(session, placed("again", biz_key="order-1"))
        with pytest.raises(EventRefused, match=r"order\.placed order-1") as caught:
            session.commit()
        session.rollback()
    assert caught.value.field == "biz_key"
    assert (shop.orders(), shop.events()) == ([], ["a", None])


def test_an_event_is_written_once(shop: Shop):
    event_ = placed()
    with shop.session() as session:
        shop.outbox.add(session, event_)
        session.commit()
        shop.outbox.add(session, event_)
        with pytest.raises(EventRefused) as caught:
            session.commit()
    assert caught.value.field == "id"
    assert str(event_.id) in caught.value.problem


def test_rollback_event_names_its_event_and_may_share_its_key(shop: Shop):
    with shop.session() as session:
        with pytest.raises(EventRefused, match="must name the event that it takes back"):
            shop.outbox.add(session, placed(kind=TxKind.ROLLBACK))
        original = shop.outbox.add(session, placed(biz_key="order-1"))
        shop.outbox.add(
            session, placed(kind=TxKind.ROLLBACK, causation_id=original, biz_key="order-1")
        )
        session.commit()
    assert [row["causation_id"] for row in shop.rows()] == [None, original]


def test_events_of_a_handler_name_its_event_and_keep_its_trace(shop: Shop):
    cause = Event(type="basket.filled", source="till", traceparent=TRACE)
    other = new_event_id()
    with shop.session() as session:
        handling(session, cause)
        shop.outbox.add(session, placed("caused"))
        shop.outbox.add(session, placed("told", causation_id=other, causation_source="desk"))
        shop.outbox.add(session, placed("by its id", causation_id=cause.id))
        shop.outbox.add(session.connection(), placed("by the connection"))
        with Session(session.connection()) as joined:
            shop.outbox.add(joined, placed("by a session on it"))
            joined.commit()
        session.commit()
        handling(session)
        shop.outbox.add(session, placed("free"))
        session.commit()
    kept = {r["key"]: (r["causation_id"], r["causation_source"]) for r in shop.rows()}
    assert kept == {
        "caused": (cause.id, "till"),
        "told": (other, "desk"),
        "by its id": (cause.id, "till"),
        "by the connection": (cause.id, "till"),
        "by a session on it": (cause.id, "till"),
        "free": (None, None),
    }
    assert {r["key"] for r in shop.rows() if r["traceparent"] == TRACE} == kept.keys() - {"free"}


def test_trace_of_the_caller_is_stored_unless_event_has_its_own(shop: Shop):
    shop.traceparent = TRACE
    own = TRACE.replace("4bf9", "ffff")
    with shop.engine.begin() as connection:
        shop.outbox.add_all(connection, [placed(), placed(traceparent=own)])
    assert [row["traceparent"] for row in shop.rows()] == [TRACE, own]


def test_unknown_type_and_invalid_payload_write_nothing(shop: Shop):
    with shop.session() as session, shop.statements() as statements:
        with pytest.raises(UnknownEventType, match=r"'order.lost' is not declared"):
            shop.outbox.add(session, Event(type="order.lost"))
        with pytest.raises(EventRefused, match=r"payload\[key\]"):
            shop.outbox.add(session, placed(payload={"note": "\x00"}))
        with pytest.raises(EventRefused, match="key"):
            shop.outbox.add(session, placed("k" * 600))
        session.commit()
    assert statements == []
    assert shop.events() == []


def test_the_relays_are_notified_only_after_the_commit(shop: Shop):
    with shop.session() as session:
        session.add(Order(id=1))
        session.commit()
        shop.outbox.add(session, placed())
        session.rollback()
        assert shop.hints == 0
        with session.begin():
            with session.begin_nested():
                shop.outbox.add(session, placed())
                session.add(Order(id=2))
            assert shop.hints == 0
        assert shop.hints == 1


def test_a_shop_with_a_schema_of_its_own_keeps_its_events_there(database_url: str):
    shop, other = Shop(database_url), Shop(database_url, schema="till")
    with other.session() as session:
        # Two outboxes in one transaction: each event is stored where its outbox writes.
        other.outbox.add(session, placed("till"))
        shop.outbox.add(session, placed("shop"))
        session.commit()
    assert (other.events(), shop.events()) == (["till"], ["shop"])
    with other.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM till.shield_outbox")) == 1
    other.close()
    shop.close()


def test_an_event_whose_trace_is_refused_is_not_added(shop: Shop):
    shop.traceparent = "x" * 10_000
    with shop.session() as session, pytest.raises(EventRefused, match="traceparent"):
        shop.outbox.add(session, placed())
    assert shop.events() == []


def test_commit_of_the_changing_transaction_wakes_the_relay(shop):
    with shop.session() as session:
        shop.outbox.wake_after(session)
        session.rollback()
        session.execute(select(1))
        session.commit()
        assert shop.hints == 0

        shop.outbox.wake_after(session)
        session.commit()
        assert shop.hints == 1

        session.execute(select(1))
        session.commit()
    assert shop.hints == 1


def test_a_service_owns_what_it_wrote_and_what_it_declares(shop):
    ours = shop.outbox.to_envelope(Event(type="order.placed"))
    assert shop.outbox.owns(ours)
    assert shop.outbox.owns(ours.evolve(source="the shop's name of last year"))
    assert shop.outbox.owns(ours.evolve(type="no.longer.declared"))
    assert not shop.outbox.owns(ours.evolve(source="another", type="no.longer.declared"))


def test_flush_in_a_rollback_only_session_may_add_an_event(shop):
    with (
        shop.engine.begin() as connection,
        Session(connection, join_transaction_mode="rollback_only") as session,
    ):
        event.listen(session, "after_flush", lambda of, _: shop.outbox.add(of, placed()))
        session.add(Order(id=1))
        session.flush()
    assert (shop.orders(), shop.events()) == ([1], ["a"])
