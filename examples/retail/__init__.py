"""A grocery chain in two services, each with a database of its own: orders and stock.

A basket is an order. The orders service stores it, charges the household and says so; the stock
service reserves the goods. What it cannot deliver comes back, and the household gets its money.
Begin with orders.py and stock.py: they are all the business code there is.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  an older one would trip over the first import
    sys.exit("the demo needs Python 3.11 or newer: install it, and recreate the environment")
