"""An event is refused at the very end of a commit: nothing of the transaction remains."""

from __future__ import annotations

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.errors import EventRefused
from tests.support.write_side_shop import Order, Shop


def test_refusal_during_commit_leaves_no_open_transaction(shop: Shop) -> None:
    taken = Event(type="order.placed", key="1", biz_key="1")
    with shop.session() as session, session.begin():
        shop.outbox.add(session, taken)

    session: Session = shop.session()
    session.add(Order(id=2))
    shop.outbox.add(session, Event(type="order.paid", key="2"))

    def add_late(late: Session) -> None:
        shop.outbox.add(late, Event(type="order.placed", key="1", biz_key="1"))

    # Runs after the listener of shieldtx, so that only the connection's COMMIT can insert the
    # event.
    sqlalchemy_event.listen(session, "before_commit", add_late)
    with pytest.raises(EventRefused):
        session.commit()
    session.close()

    # The next user of that connection commits only its own rows.
    with shop.session() as next_, next_.begin():
        next_.add(Order(id=3))
    assert shop.orders() == [3]
    assert shop.events() == ["1"]
