"""Mutants of early takeovers: of whom a worker takes for dead, and of what it releases then."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Select, select, true

from shieldtx import _process_tokens as tokens
from shieldtx.app import builders
from shieldtx.store.dead_owners import DeadOwners
from shieldtx.store.statements import outbox as outbox_sql
from tests.verification.faults.failpoints import Breaker
from tests.verification.faults.mutants.mutant import named


def _every_other_relay_is_dead(breaker: Breaker) -> None:
    def has_died(name: str) -> bool:
        return not tokens.is_of_this_process(name)

    builders.owner_has_died = has_died
    DeadOwners.__init__.__kwdefaults__["relay_died"] = has_died


def _every_other_consumer_is_dead(breaker: Breaker) -> None:
    def has_died(token: UUID) -> bool:
        return not tokens.is_of_this_process(f"-{token.hex}")

    DeadOwners.__init__.__kwdefaults__["consumer_died"] = has_died


def _shards_are_released_without_their_rows(breaker: Breaker) -> None:
    def mutant(*_: object) -> Select[tuple[bool]]:
        return select(true())

    outbox_sql.end_leases = mutant


OF_TAKEOVERS = named(
    "BANK_MUTANT",
    ("M64", "a relay takes the shards of living relays", _every_other_relay_is_dead),
    ("M65", "a consumer ends attempts of living consumers", _every_other_consumer_is_dead),
    (
        "M66",
        "shards of dead relays are released without their rows",
        _shards_are_released_without_their_rows,
    ),
)
