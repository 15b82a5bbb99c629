"""The stock service: reserves the goods of an order, or refuses the order."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import BigInteger, ForeignKey, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from examples.retail.events import OrderPlaced
from shieldtx import Event, RetryPolicy, ShieldTx

shield = ShieldTx.from_env()
stock = shield.consumer("stock")


class Base(DeclarativeBase):
    """The tables of this service, in the same database as shieldtx's tables."""

    type_annotation_map = {int: BigInteger}  # noqa: RUF012  the attribute that SQLAlchemy reads


class Product(Base):
    """The delivered and the remaining quantity of a product."""

    __tablename__ = "product"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    delivered: Mapped[int]
    on_hand: Mapped[int]

    def take(self, quantity: int) -> None:
        """Take a quantity off the shelf; raises OutOfStock when there is not enough."""
        if quantity > self.on_hand:
            raise OutOfStock(f"{quantity} of product {self.id} wanted, {self.on_hand} left")
        self.on_hand -= quantity


class Reservation(Base):
    """An order whose goods are reserved."""

    __tablename__ = "reservation"

    id: Mapped[int] = mapped_column(primary_key=True)
    basket_id: Mapped[int]
    household_id: Mapped[int]
    number: Mapped[int]
    lines: Mapped[list[ReservedLine]] = relationship()


class ReservedLine(Base):
    """The quantity of a product in a reservation."""

    __tablename__ = "reserved_line"

    reservation_id: Mapped[int] = mapped_column(ForeignKey(Reservation.id), primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey(Product.id), primary_key=True)
    quantity: Mapped[int]


class OutOfStock(Exception):
    """There is not enough left of a product; the next delivery may come before the next attempt."""


@stock.handles(
    "orders.placed",
    payload=OrderPlaced,
    retry=RetryPolicy(max_attempts=3, first=timedelta(milliseconds=200), expected=(OutOfStock,)),
    lease=timedelta(seconds=5),
)
def reserve(session: Session, event: Event) -> None:
    """Reserve the goods of an order: all of them or none.

    Any exception undoes everything. After the third attempt, shieldtx makes the orders service take
    its order back. OutOfStock is expected: many in a row are no defect of this function.
    """
    order: OrderPlaced = event.payload
    wanted = {line.product_id: line.quantity for line in order.lines}
    # Always locked in the same order, so that two reservations never wait for each other.
    shelf = select(Product).where(Product.id.in_(wanted)).order_by(Product.id).with_for_update()
    for product in session.scalars(shelf).all():
        product.take(wanted[product.id])
    session.add(
        Reservation(
            basket_id=order.basket_id,
            household_id=order.household_id,
            number=order.number,
            lines=[ReservedLine(product_id=p, quantity=q) for p, q in wanted.items()],
        )
    )
