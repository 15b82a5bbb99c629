"""The stock service: reserves what an order needs, or refuses the order."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import BigInteger, ForeignKey, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from examples.retail.events import OrderPlaced
from shieldtx import Event, RetryPolicy, ShieldTx

shield = ShieldTx.from_env()
stock = shield.consumer("stock")


class Base(DeclarativeBase):
    """The tables of this service; those of shieldtx lie beside them, in the same database."""

    type_annotation_map = {int: BigInteger}  # noqa: RUF012  SQLAlchemy's way to be told


class Product(Base):
    """What was delivered of a product, and what is left of it."""

    __tablename__ = "product"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    delivered: Mapped[int]
    on_hand: Mapped[int]

    def take(self, quantity: int) -> None:
        """Take some off the shelf; raises OutOfStock when there is not enough."""
        if quantity > self.on_hand:
            raise OutOfStock(f"{quantity} of product {self.id} wanted, {self.on_hand} left")
        self.on_hand -= quantity


class Reservation(Base):
    """An order whose goods are put aside."""

    __tablename__ = "reservation"

    id: Mapped[int] = mapped_column(primary_key=True)
    basket_id: Mapped[int]
    household_id: Mapped[int]
    number: Mapped[int]
    lines: Mapped[list[ReservedLine]] = relationship()


class ReservedLine(Base):
    """So much of a product in a reservation."""

    __tablename__ = "reserved_line"

    reservation_id: Mapped[int] = mapped_column(ForeignKey(Reservation.id), primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey(Product.id), primary_key=True)
    quantity: Mapped[int]


class OutOfStock(Exception):
    """There is not enough left of a product; the next delivery may come before the next attempt."""


@stock.handles(
    "orders.placed",
    payload=OrderPlaced,
    retry=RetryPolicy(max_attempts=3, first=timedelta(milliseconds=200)),
    lease=timedelta(seconds=5),
)
def reserve(session: Session, event: Event) -> None:
    """Put the goods of an order aside: all of them or none.

    Whatever is raised here undoes everything. After the third attempt shieldtx tells the orders
    service to take its order back.
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
