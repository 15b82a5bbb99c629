"""The scenarios of the matrix, one module for each part of the way of an event."""

from tests.faults.matrix import Fault
from tests.faults.scenarios import (
    broker,
    consumer,
    database,
    forgery,
    halves,
    network,
    operation,
    poison,
    reconciliation,
    reconciliation_killed,
    relay,
    rollback,
    topics,
    write,
)

FAULTS: tuple[Fault, ...] = (
    *write.FAULTS,
    *database.FAULTS,
    *relay.FAULTS,
    *operation.FAULTS,
    *broker.FAULTS,
    *network.FAULTS,
    *topics.FAULTS,
    *consumer.FAULTS,
    *poison.FAULTS,
    *rollback.FAULTS,
    *forgery.FAULTS,
    *halves.FAULTS,
    *reconciliation.FAULTS,
    *reconciliation_killed.FAULTS,
)
