"""How fast shieldtx is, side by side with its peers: `make bench`, or `python -m benchmarks`.

The rules, which are the same for all subjects:

- PostgreSQL, Apache Kafka and what is measured share the machine; fsync and synchronous_commit are
  on, acks=all, producers are idempotent.
- The same line of events, of about 300 bytes and with 1,000 keys, is written before; vacuum and
  checkpoint are done; topics have 8 partitions; connections are made before the clock starts.
- Subjects take turns within a run, in an order that changes; but for faststream-outbox, which is
  run once. Absolute figures differ from machine to machine, and from hour to hour: the ratios of a
  round are what counts.
- Each result is checked by another client: records are counted and the order of each key is
  verified. A wrong one is a failure with exit status 1.
- A peer is set up as its own documentation recommends, with batches that measure best, and without
  the ten headers of shieldtx's records. The bare clients get these records ready made.
- Our own processes, the bare clients and the inbox by hand have Python's garbage collector set
  alike.

`python -m benchmarks --only relay --subject relay_kafka_python` measures one thing alone.
"""
