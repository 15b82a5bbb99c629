"""The audit: the outcome of every order, counted without shieldtx.

It reads the topics completely, with another Kafka client than shieldtx's, and the business tables
of both services. Of shieldtx's tables it reads only the rows that wait for an operator.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from examples.retail.topics import TopicRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A trace of an order, in the order in which traces were left."""

    basket_id: int
    household_id: int
    number: int
    """Number of the order among the orders of its household, from 1 on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Books:
    """All data to count."""

    placed: Mapping[int, Trace]
    """By basket."""
    records: Sequence[TopicRecord]
    """Records of the commit topic, in order per partition."""
    effects: Sequence[Trace]
    """Reservations."""
    compensations: Sequence[Trace]
    """Refunds."""
    cancelled: frozenset[int]
    parked: frozenset[int]
    """Baskets whose event or rollback event waits for an operator."""
    charged_cents: int
    refunded_cents: int
    standing_cents: int
    """Total price of the orders that were not cancelled."""
    unbalanced_accounts: int
    """Households with a wrong balance.

    Their debt differs from their charges minus refunds, or from the price of their valid orders.
    """
    delivered: int
    on_hand: int
    reserved: int
    unbalanced_products: int
    """Products with missing goods, or with reservations that differ from the orders."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """The results of the audit."""

    books: Books
    duplicates: int
    """Records beyond the first of their order: allowed, the inbox removes them."""
    ghosts: int
    """Orders on the topic or in the stock that were never placed."""
    lost: int
    """Orders that are not on the topic, or ended neither reserved nor cancelled nor parked."""
    double: int
    """Reservations or refunds beyond the first of their order, and orders with two outcomes."""
    inversions: int
    """Records, reservations or refunds of a household that are not in the order of its orders."""

    @property
    def failures(self) -> list[str]:
        """The problems as texts; empty without problems."""
        books = self.books
        counts = {
            "orders that were lost": self.lost,
            "effects that were doubled": self.double,
            "orders that overtook another one of their household": self.inversions,
            "orders that were never placed": self.ghosts,
            "accounts that do not balance": books.unbalanced_accounts,
            "products that do not balance": books.unbalanced_products,
        }
        return [f"{what}: {count:,}" for what, count in counts.items() if count]


def judge(books: Books) -> Audit:
    """Count the problems, which must be zero."""
    on_topic = {record.basket_id for record in books.records}
    reserved = {effect.basket_id for effect in books.effects}
    ended = reserved | books.cancelled | books.parked
    # An event that could never be sent was cancelled or parked in the orders service.
    unsent = books.placed.keys() - on_topic - books.cancelled - books.parked
    published = [books.placed[r.basket_id] for r in books.records if r.basket_id in books.placed]
    return Audit(
        books=books,
        duplicates=len(books.records) - len(on_topic),
        ghosts=len((on_topic | reserved) - books.placed.keys()),
        lost=len((books.placed.keys() - ended) | unsent),
        double=_repeated(books.effects)
        + _repeated(books.compensations)
        + len(reserved & (books.cancelled | books.parked)),
        inversions=_scattered(books.records)
        + sum(_inversions(traces) for traces in (published, books.effects, books.compensations)),
    )


def read_books(orders: Connection, stock: Connection, records: Iterable[TopicRecord]) -> Books:
    """Read the business tables of both services; `records` are those of both topics."""
    records = list(records)
    cancelled = frozenset(orders.scalars(text("SELECT basket_id FROM orders WHERE cancelled")))
    parked = _parked(orders, stock, records) - cancelled
    money = orders.execute(text(_MONEY)).one()
    goods = stock.execute(text("SELECT sum(delivered), sum(on_hand) FROM product")).one()
    return Books(
        placed={trace.basket_id: trace for trace in _traces(orders, _PLACED)},
        records=[record for record in records if record.topic.endswith(".commit")],
        effects=_traces(stock, _EFFECTS),
        compensations=_traces(orders, _COMPENSATIONS),
        cancelled=cancelled,
        parked=parked,
        charged_cents=money.charged,
        refunded_cents=money.refunded,
        standing_cents=money.standing,
        unbalanced_accounts=_count(orders, _UNBALANCED_ACCOUNTS),
        delivered=int(goods[0]),
        on_hand=int(goods[1]),
        reserved=_count(stock, "SELECT coalesce(sum(quantity), 0) FROM reserved_line"),
        unbalanced_products=_unbalanced_products(stock, _ordered(orders, parked)),
    )


_PLACED = "SELECT basket_id, household_id, number FROM orders"
_EFFECTS = "SELECT basket_id, household_id, number FROM reservation ORDER BY id"
_COMPENSATIONS = """
    SELECT basket_id, o.household_id, number FROM payment p JOIN orders o USING (basket_id)
    WHERE p.cents < 0 ORDER BY p.id
"""

_MONEY = """
    SELECT (SELECT coalesce(sum(cents), 0) FROM payment WHERE cents > 0) AS charged,
           (SELECT coalesce(-sum(cents), 0) FROM payment WHERE cents < 0) AS refunded,
           (SELECT coalesce(sum(cents), 0) FROM orders WHERE NOT cancelled) AS standing
"""

_UNBALANCED_ACCOUNTS = """
    SELECT count(*)
    FROM account
    LEFT JOIN (SELECT household_id, sum(cents) AS paid FROM payment GROUP BY 1) p
        USING (household_id)
    LEFT JOIN (SELECT household_id, sum(cents) AS cost FROM orders WHERE NOT cancelled GROUP BY 1) o
        USING (household_id)
    WHERE owed_cents <> coalesce(paid, 0) OR owed_cents <> coalesce(cost, 0)
"""


def _traces(connection: Connection, statement: str) -> list[Trace]:
    return [Trace(**row) for row in connection.execute(text(statement)).mappings()]


def _parked(
    orders: Connection, stock: Connection, records: Sequence[TopicRecord]
) -> frozenset[int]:
    """Return the baskets whose records could not be read, or were given up by both services."""
    basket_at = {(r.topic, r.partition, r.offset): r.basket_id for r in records}
    places = text("SELECT topic, record_partition, record_offset FROM shield_parked")
    unread = {basket_at[tuple(place)] for db in (orders, stock) for place in db.execute(places)}
    dead = text("SELECT biz_key FROM shield_inbox WHERE status = 'DEAD'")
    failed = text("SELECT biz_key FROM shield_outbox WHERE status = 'FAILED'")
    given_up = [*orders.scalars(dead), *orders.scalars(failed), *stock.scalars(failed)]
    return frozenset(unread | {int(basket) for basket in given_up})


def _unbalanced_products(stock: Connection, ordered: Counter[int]) -> int:
    """Count the products with missing goods or with reservations that differ from the orders."""
    products = stock.execute(
        text(
            "SELECT product.id, delivered, on_hand, coalesce(sum(quantity), 0) AS reserved "
            "FROM product LEFT JOIN reserved_line ON product_id = product.id GROUP BY product.id"
        )
    )
    return sum(
        product.on_hand < 0
        or product.delivered - product.on_hand != product.reserved
        or product.reserved != ordered[product.id]
        for product in products
    )


def _ordered(orders: Connection, parked: frozenset[int]) -> Counter[int]:
    """Return the ordered quantity of each product, without cancelled and parked orders."""
    lines = orders.execute(
        text(
            "SELECT basket_id, product_id, quantity FROM order_line JOIN orders USING (basket_id) "
            "WHERE NOT cancelled"
        )
    )
    total: Counter[int] = Counter()
    for line in lines:
        if line.basket_id not in parked:
            total[line.product_id] += line.quantity
    return total


def _repeated(traces: Sequence[Trace]) -> int:
    return len(traces) - len({trace.basket_id for trace in traces})


def _inversions(traces: Iterable[Trace]) -> int:
    """Count the orders whose first trace is later than that of a later order of their household."""
    seen: set[int] = set()
    latest: dict[int, int] = {}
    inversions = 0
    for trace in traces:
        if trace.basket_id not in seen:
            seen.add(trace.basket_id)
            inversions += trace.number < latest.get(trace.household_id, 0)
            latest[trace.household_id] = trace.number
    return inversions


def _scattered(records: Sequence[TopicRecord]) -> int:
    """Count the partitions beyond the first that contain records of a household."""
    partitions = defaultdict(set)
    for record in records:
        partitions[record.household_id].add(record.partition)
    return sum(len(found) - 1 for found in partitions.values())


def _count(connection: Connection, statement: str) -> int:
    value: Any = connection.scalars(text(statement)).one()
    return int(value)
