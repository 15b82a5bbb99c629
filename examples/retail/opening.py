"""Prepares a service: its tables, and their contents before the first order.

`python -m examples.retail.opening SERVICE --baskets N`, in the environment of the service. A second
run changes nothing.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable

from sqlalchemy.dialects.postgresql import insert

from examples.retail.baskets import Basket, first_baskets

STOCKED = 0.94
"""The delivered share of the total demand of all baskets.

It is rounded up per product, so that rare products do not run out at once: then 3 to 8 % of the
orders find an empty shelf.
"""


def deliveries(baskets: Iterable[Basket]) -> dict[int, int]:
    """Return the delivered quantity of each product before the first order."""
    demand: Counter[int] = Counter()
    for basket in baskets:
        for line in basket.lines:
            demand[line.product_id] += line.quantity
    return {product: math.ceil(STOCKED * wanted) for product, wanted in demand.items()}


def open_orders(baskets: Iterable[Basket]) -> None:
    """Create the tables of the orders service and an account for each household."""
    from examples.retail.orders import Account, Base, shield  # noqa: PLC0415  one service, not both

    households = sorted({basket.household_id for basket in baskets})
    with shield.engine.begin() as connection:
        Base.metadata.create_all(connection)
        accounts = insert(Account).on_conflict_do_nothing()
        connection.execute(accounts, [{"household_id": h} for h in households])


def open_stock(baskets: Iterable[Basket]) -> None:
    """Create the tables of the stock service and fill its shelves."""
    from examples.retail.stock import Base, Product, shield  # noqa: PLC0415  one service, not both

    delivered = sorted(deliveries(baskets).items())
    with shield.engine.begin() as connection:
        Base.metadata.create_all(connection)
        shelves = insert(Product).on_conflict_do_nothing()
        connection.execute(shelves, [{"id": p, "delivered": n, "on_hand": n} for p, n in delivered])


def main() -> None:
    """Prepare the service that the arguments name."""
    openings = {"orders": open_orders, "stock": open_stock}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("service", choices=openings)
    parser.add_argument("--baskets", type=int, required=True)
    chosen = parser.parse_args()
    openings[chosen.service](first_baskets(chosen.baskets))


if __name__ == "__main__":
    main()
