"""Defects that the repair has had, or that its order of steps is there to prevent, put back."""

from __future__ import annotations

from typing import Final

from shieldtx.reconcile.key_order import KeyOrder
from shieldtx.reconcile.order_for_all import OrderForAll
from shieldtx.store.repair import SqlRepairStore
from tests.verification.oracle import broken
from tests.verification.oracle.mutants import Mutant, instead

OF_REPAIRS: Final = (
    Mutant(
        name="N4 what was taken back is delivered",
        applied=instead(SqlRepairStore, "taken_back", lambda *_: set()),
        stories=(broken.record_is_lost_and_taken_back,),
    ),
    Mutant(
        name="N4 delivered behind later events of its key",
        applied=instead(KeyOrder, "overtaken", lambda *_, **__: set()),
        stories=(broken.record_is_lost_before_another_of_its_key,),
    ),
    Mutant(
        name="published again behind later events of its key",
        applied=instead(OrderForAll, "late", lambda *_, **__: {}),
        stories=(broken.record_is_lost_before_another_of_its_key,),
    ),
    Mutant(
        name="what a person has discarded is delivered",
        applied=instead(SqlRepairStore, "discarded", lambda *_, **__: set()),
        stories=(broken.record_is_lost,),
    ),
)
