"""The scenarios of the matrix, one module for each part of the way of an event."""

from tests.faults.matrix import Fault
from tests.faults.scenarios import consumer, reconciliation, relay, write

FAULTS: tuple[Fault, ...] = (*write.FAULTS, *relay.FAULTS, *consumer.FAULTS, *reconciliation.FAULTS)
