"""Two small services, as a user would write them; the tests run them by the command line."""

GATE = 4711
"""An advisory lock: whoever holds it keeps the handlers of the stock service waiting."""
