"""The scenarios of the matrix, one module for each part of the way of an event."""

from tests.faults.matrix import Fault
from tests.faults.scenarios import (
    broker,
    connections,
    consumer,
    database,
    forgery,
    halves,
    interruptions,
    network,
    operation,
    poison,
    reconciliation,
    reconciliation_killed,
    relay,
    releases,
    rollback,
    strangers,
    topics,
    write,
)

FAULTS: tuple[Fault, ...] = (
    *write.FAULTS,
    *database.FAULTS,
    *connections.FAULTS,
    *relay.FAULTS,
    *releases.FAULTS,
    *operation.FAULTS,
    *broker.FAULTS,
    *network.FAULTS,
    *topics.FAULTS,
    *consumer.FAULTS,
    *poison.FAULTS,
    *rollback.FAULTS,
    *forgery.FAULTS,
    *strangers.FAULTS,
    *halves.FAULTS,
    *interruptions.FAULTS,
    *reconciliation.FAULTS,
    *reconciliation_killed.FAULTS,
)
