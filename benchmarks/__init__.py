"""The speed of shieldtx compared with its peers: `make bench`, or `python -m benchmarks`.

The rules, which are the same for all subjects:

- PostgreSQL, Apache Kafka and the subject share the machine; fsync and synchronous_commit are on,
  acks=all, producers are idempotent.
- The same sequence of events, of about 300 bytes and with 1,000 keys, is written before; vacuum and
  checkpoint are done; topics have 8 partitions; connections are made before the clock starts.
- Subjects alternate within a run, in an order that changes; only faststream-outbox runs once.
  Absolute figures differ from machine to machine, and from hour to hour: the ratios of a round are
  the result.
- Another client checks each result: it counts the records and verifies the order of each key. A
  wrong result is a failure with exit status 1.
- A peer is set up as its own documentation recommends, with batches that measure best, and without
  the ten headers of shieldtx's records. The bare clients get these records ready made.
- shieldtx's processes, the bare clients and the plain SQLAlchemy inbox share the settings of
  Python's garbage collector.

`python -m benchmarks --only relay --subject relay_kafka_python` measures only one subject.
"""
