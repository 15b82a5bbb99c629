"""The consumer adapter: fetches records, receives them into the inbox, runs the handlers."""
