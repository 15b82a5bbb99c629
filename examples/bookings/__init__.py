"""A hotel on FastAPI: guests book rooms, two asynchronous services exchange events, processes die.

`python -m examples.bookings` starts both services, books over HTTP, kills processes meanwhile, and
verifies the tables of both services with SQL of its own.
"""
