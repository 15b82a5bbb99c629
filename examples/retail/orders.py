"""The orders service: takes orders, charges households, refunds orders that cannot be delivered."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from examples.retail.baskets import Basket
from examples.retail.events import OrderPlaced
from shieldtx import Event, ShieldTx

shield = ShieldTx.from_env()
orders = shield.consumer("orders")


class Base(DeclarativeBase):
    """The tables of this service, in the same database as shieldtx's tables."""

    type_annotation_map = {int: BigInteger}  # noqa: RUF012  the attribute that SQLAlchemy reads


class Account(Base):
    """The debt of a household, and the number of its orders."""

    __tablename__ = "account"

    household_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    orders: Mapped[int] = mapped_column(default=0)
    owed_cents: Mapped[int] = mapped_column(default=0)


class Order(Base):
    """A basket that a household has ordered."""

    __tablename__ = "orders"

    basket_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    household_id: Mapped[int] = mapped_column(ForeignKey(Account.household_id), index=True)
    number: Mapped[int]
    cents: Mapped[int]
    cancelled: Mapped[bool] = mapped_column(default=False)
    lines: Mapped[list[OrderLine]] = relationship()


class OrderLine(Base):
    """A product in an order."""

    __tablename__ = "order_line"

    basket_id: Mapped[int] = mapped_column(ForeignKey(Order.basket_id), primary_key=True)
    product_id: Mapped[int] = mapped_column(primary_key=True)
    quantity: Mapped[int]
    cents: Mapped[int]


class Payment(Base):
    """Money that a household was charged (above zero) or got back (below zero)."""

    __tablename__ = "payment"

    id: Mapped[int] = mapped_column(primary_key=True)
    household_id: Mapped[int]
    basket_id: Mapped[int]
    cents: Mapped[int]


@shield.publishes("orders.placed", key="household_id", biz_key="basket_id")
def place(session: Session, basket: Basket) -> OrderPlaced:
    """Store an order, charge its household, and publish the returned event: all or nothing."""
    account = session.get_one(Account, basket.household_id, with_for_update=True)
    account.orders += 1
    account.owed_cents += basket.cents
    order = Order(
        basket_id=basket.id,
        household_id=basket.household_id,
        number=account.orders,
        cents=basket.cents,
        lines=[
            OrderLine(product_id=line.product_id, quantity=line.quantity, cents=line.cents)
            for line in basket.lines
        ],
    )
    session.add_all([order, _payment(order, order.cents)])
    return OrderPlaced(
        basket_id=order.basket_id,
        household_id=order.household_id,
        number=order.number,
        cents=order.cents,
        lines=basket.lines,
    )


@orders.compensates("orders.placed")
@shield.local_rollback("orders.placed")
def cancel(session: Session, event: Event) -> None:
    """Refund an order: the stock service gave it up, or its event could never be delivered."""
    placed: OrderPlaced = event.payload
    account = session.get_one(Account, placed.household_id, with_for_update=True)
    account.owed_cents -= placed.cents
    order = session.get_one(Order, placed.basket_id)
    order.cancelled = True
    session.add(_payment(order, -order.cents))


def _payment(order: Order, cents: int) -> Payment:
    return Payment(household_id=order.household_id, basket_id=order.basket_id, cents=cents)
