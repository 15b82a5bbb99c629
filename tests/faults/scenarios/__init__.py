"""The scenarios of the matrix, one module for each part of the way of an event."""

from tests.faults.matrix import Fault
from tests.faults.scenarios import broker, consumer, network, reconciliation, relay, topics, write

FAULTS: tuple[Fault, ...] = (
    *write.FAULTS,
    *relay.FAULTS,
    *broker.FAULTS,
    *network.FAULTS,
    *topics.FAULTS,
    *consumer.FAULTS,
    *reconciliation.FAULTS,
)
