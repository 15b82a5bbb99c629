"""A grocery chain in two services, each with a database of its own: orders and stock.

A basket is an order. The orders service stores it, charges the household and publishes an event;
the stock service reserves the goods. Orders that it cannot deliver come back, and the household
gets its money. Begin with orders.py and stock.py: they contain all the business code.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  an older Python would fail at the first import
    sys.exit("the demo needs Python 3.11 or newer: install it, and recreate the environment")
