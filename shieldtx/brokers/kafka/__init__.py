"""Apache Kafka as a broker: the only place with a Kafka client."""
