"""Two small services, as a user would write them; the tests run them from the command line."""

GATE = 4711
"""An advisory lock that blocks the handlers of the stock service while it is held."""
