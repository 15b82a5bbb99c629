"""The smallest complete system: a shop sells, a warehouse reserves or refuses. Run this one file.

SQLite and a broker in memory replace PostgreSQL and Apache Kafka. In production, the settings come
from the environment, and `shieldtx relay` and `shieldtx consume` do the work of `deliver`.
"""

from dataclasses import dataclass
from tempfile import TemporaryDirectory

from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, Settings, ShieldTx
from shieldtx.cli.logging import LogFormat, LogLevel, set_up
from shieldtx.testing.memory_broker import MemoryBroker

folder = TemporaryDirectory()
broker = MemoryBroker()
shop, warehouse = (
    ShieldTx(Settings(source=name, database_url=f"sqlite:///{folder.name}/{name}"), broker=broker)
    for name in ("shop", "warehouse")
)


@dataclass
class Order:
    """An order of a customer."""

    id: int
    customer: str
    item: str


@shop.publishes("orders.placed", key="customer", biz_key="id")
def place(session: Session, order: Order) -> Order:
    """Store an order; the returned value becomes an event of the same transaction."""
    session.execute(text("INSERT INTO orders VALUES (:id, :item)"), vars(order))
    print(f"shop:      {order.customer} orders a {order.item} (order {order.id})")
    return order


# The handler prints, which no rollback undoes: so it shares its transaction with no other event.
@warehouse.consumer("stock").handles("orders.placed", payload=Order, alone=True)
def reserve(session: Session, event: Event) -> None:
    """Take the item off the shelf. After any error except Refused, the event is tried again."""
    wanted = {"item": event.payload.item}
    if not session.scalar(text("SELECT pieces FROM shelf WHERE item = :item"), wanted):
        raise Refused(f"no {event.payload.item} left")
    session.execute(text("UPDATE shelf SET pieces = pieces - 1 WHERE item = :item"), wanted)
    print(f"warehouse: order {event.payload.id} is reserved")


@shop.consumer("refunds").compensates("orders.placed")
def cancel(session: Session, event: Event) -> None:
    """Cancel an order that the warehouse has refused."""
    session.execute(text("DELETE FROM orders WHERE id = :id"), vars(event.payload))
    print(f"shop:      order {event.payload.id} came back and is cancelled")


def deliver() -> None:
    """Run relays and consumers until nothing is left to do, and close them."""
    relays = shop.build_relay(), warehouse.build_relay()
    consumers = warehouse.build_consumer("stock"), shop.build_consumer("refunds")
    while any(w.run_once().more for w in relays) or any(w.run_once().more for w in consumers):
        continue
    for worker in (*relays, *consumers):
        worker.close()


if __name__ == "__main__":
    set_up(LogLevel.WARNING, LogFormat.PLAIN)
    shelf = "shelf AS SELECT 'lamp' AS item, 2 AS pieces"
    for service, table in (shop, "orders (id, item)"), (warehouse, shelf):
        service.schema.upgrade()
        with service.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {table}"))
    broker.topics().create(shop.topics(), partitions=1, replication=1)
    with Session(shop.engine) as session, session.begin():
        for number, customer in enumerate(["Ada", "Bo", "Cleo"], start=1):
            place(session, Order(number, customer, "lamp"))
    deliver()
