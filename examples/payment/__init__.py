"""An order in one PostgreSQL, its payment at an HTTP service that is slow, fails and loses answers.

No transaction spans both, so an outbox row alone cannot help: the event "orders.paid" is a half
message. It is prepared before the payment is requested, and sent if the payment was made. If no
answer came, check-back asks the payment service for the outcome.

| module | contents |
|---|---|
| `bank` | the payment service, a separate process, in HTTP |
| `shop` | the orders, and the shop's declarations for shieldtx |
| `__main__` | customers, kills of the bank in every phase, and the audit |
"""
