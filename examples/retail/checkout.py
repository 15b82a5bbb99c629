"""The checkouts: bring real baskets to the orders service, one transaction per basket.

`python -m examples.retail.checkout --baskets N`, in the environment of the orders service. With
`--after M`, the first M baskets were there before.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from examples.retail.baskets import Basket, first_baskets
from examples.retail.orders import place, shield

CHECKOUTS = 2


def ring_up(baskets: Iterable[Basket]) -> None:
    """Place the orders of one checkout, one after the other."""
    engine = create_engine(shield.settings.url)
    begin = sessionmaker(engine).begin
    for basket in baskets:
        with begin() as session:
            place(session, basket)
    engine.dispose()


def main() -> None:
    """Send each household always to the same checkout, which keeps the order of its baskets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baskets", type=int, required=True)
    parser.add_argument("--after", type=int, default=0)
    options = parser.parse_args()
    baskets = first_baskets(options.baskets)[options.after :]
    queues = [
        [b for b in baskets if b.household_id % CHECKOUTS == number] for number in range(CHECKOUTS)
    ]
    with ThreadPoolExecutor(CHECKOUTS) as checkouts:
        # Iterated, so that the error of a checkout is raised here.
        for _ in checkouts.map(ring_up, queues):
            continue


if __name__ == "__main__":
    main()
