"""An order in one PostgreSQL, its payment at an HTTP service that is slow, fails and loses answers.

No transaction spans the two, so that an outbox row alone cannot help: the event "orders.paid" is a
half message. It is prepared before the payment is asked for, sent if it was made, and where no
answer came, the payment service is asked how it ended.

| module | who |
|---|---|
| `bank` | the payment service, a process of its own, in HTTP |
| `shop` | the orders, and what it declares to shieldtx |
| `__main__` | customers, kills of the bank in every phase, and the audit |
"""
