"""Brokers that shieldtx can publish to and read from: the only place with a Kafka client."""
