"""Mutants that bound a batch by its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shieldtx.brokers.kafka.broker import KafkaSubscriber
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.store import inbox_receiver
from shieldtx.store.statements import claim as claim_sql
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named

ALL = 2**62
"""More bytes than any batch has."""


def _claims_of_any_size(breaker: Breaker) -> None:
    parameters = claim_sql.parameters
    claim_sql.parameters = lambda **given: parameters(**given | {"limit_bytes": ALL})


def _polls_of_any_size(breaker: Breaker) -> None:
    poll = KafkaSubscriber.poll

    def mutant(self: KafkaSubscriber, **limits: Any) -> Sequence[ReceivedRecord]:
        return poll(self, **limits | {"limit_bytes": ALL})

    KafkaSubscriber.poll = mutant


def _inserts_of_any_size(breaker: Breaker) -> None:
    inbox_receiver._parts = lambda arrivals: [slice(0, len(arrivals))]


OF_SIZES = named(
    "BANK_MUTANT",
    ("M49", "a claim is bounded by its rows alone", _claims_of_any_size),
    ("M50", "a poll is bounded by its records alone", _polls_of_any_size),
    ("M51", "a batch goes into the inbox with one INSERT", _inserts_of_any_size),
)
