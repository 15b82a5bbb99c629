"""A publisher called with any sessions and connections: row and event, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from shieldtx.errors import TransactionRefused
from shieldtx.outbox import publish_decorator as publishing
from tests.support.write_side_shop import Order, Shop

MINE = ("session", "its connection", "scoped", "joined")
"""Arguments that stand for one transaction: the transaction of the row."""
OTHERS = ("other session", "other connection")
ANYTHING = (*MINE, *OTHERS, "text")


def _calls() -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the arguments of each call, and how many of them are positional.

    At least one argument stands for the transaction of the row.
    """
    for size in (1, 2, 3):
        for names in product(ANYTHING, repeat=size):
            if set(names) & set(MINE):
                yield from ((names, n) for n in ({0, 1, size} if size < 3 else {size}))


@contextmanager
def _arguments(shop: Shop) -> Iterator[dict[str, Any]]:
    with ExitStack() as closing:
        mine, other = (closing.enter_context(shop.session()) for _ in range(2))
        scoped = scoped_session(sessionmaker(shop.engine))
        scoped.registry.set(mine)
        joined = closing.enter_context(Session(mine.connection()))
        yield {
            "session": mine,
            "its connection": mine.connection(),
            "scoped": scoped,
            "joined": joined,
            "other session": other,
            "other connection": other.connection(),
            "text": "note",
        }


def _is_refused(shop: Shop, names: tuple[str, ...], positional: int, row: int) -> bool:
    """Call a publisher, commit the transaction of the row, and roll the other one back."""

    @publishing.publish_decorator(
        lambda: shop.outbox, publishing.Publication(event_type="order.placed")
    )
    def place(*args: Any, **kwargs: Any) -> dict[str, int]:
        given["session"].execute(insert(Order).values(id=row))
        return {"id": row}

    with _arguments(shop) as given:
        values = [given[name] for name in names]
        by_name = {f"argument_{n}": value for n, value in enumerate(values[positional:])}
        try:
            place(*values[:positional], **by_name)
        except TransactionRefused:
            return True
        given["other session"].rollback()
        given["session"].commit()
        return False


def _wrong(shop: Shop) -> Iterator[str]:
    """Make each call, and describe the calls whose outcome is not the promised one."""
    for row, (names, positional) in enumerate(_calls()):
        shop.clear()
        is_refused = _is_refused(shop, names, positional, row)
        orders, events = len(shop.orders()), len(shop.events())
        call = f"{names}, {positional} of them positional"
        if is_refused is not bool(set(names) & set(OTHERS)):
            yield f"{call}: {'refused' if is_refused else 'which transaction is meant?'}"
        if orders != events or bool(orders) is is_refused:
            yield f"{call}: {orders} rows, {events} events"


def test_row_and_event_end_alike_for_any_arguments(postgres_shop: Shop) -> None:
    found = list(_wrong(postgres_shop))
    assert not found, "\n".join(found)


@pytest.mark.selftest
def test_calls_detect_a_publisher_that_takes_the_first_session(
    postgres_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_homes_of", lambda _: [postgres_shop])
    assert any("1 rows, 0 events" in each for each in _wrong(postgres_shop))
