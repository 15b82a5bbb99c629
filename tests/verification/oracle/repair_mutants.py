"""Former defects of the repair, and defects that its order of steps prevents, put back."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

from sqlalchemy import Select

from shieldtx.ports.hand_over import Arrival, EventPosition
from shieldtx.ports.repair import RowSeen
from shieldtx.reconcile.repair import decisions, key_order, order_for_all, releases, repair
from shieldtx.reconcile.repair.context import RepairContext
from shieldtx.reconcile.repair.decisions import Policy
from shieldtx.reconcile.repair.key_order import KeyOrder
from shieldtx.reconcile.repair.known_in_order import KnownInOrder
from shieldtx.reconcile.repair.lost_rows import LostRows
from shieldtx.reconcile.repair.order_for_all import OrderForAll
from shieldtx.reconcile.repair.progress import Progress
from shieldtx.reconcile.repair.publish_again import PublishAgain
from shieldtx.reconcile.repair.revoked import Revoked
from shieldtx.reconcile.repair.siblings import Siblings
from shieldtx.reconcile.repair.steps import Publication
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.dialects import Dialect
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.statements import hand_over
from shieldtx.store.tables import Tables
from tests.verification.oracle import broken, key_stories, release_stories, repair_plan
from tests.verification.oracle.mutants import Mutant, instead


class _AsksOneGroup(PublishAgain):
    """Reads the discards of only the group that lacks a rollback."""

    def __init__(self, publication: Publication, context: RepairContext) -> None:
        super().__init__(publication, context)
        lacked = publication.unless_received
        self._revoked = Revoked(context.stores, to=lacked and lacked.to, progress=context.progress)


_late = OrderForAll.late


def _late_at_first(
    order: OrderForAll, rows: Sequence[RowSeen], *, again: bool = False
) -> Mapping[UUID, str]:
    return {} if again else _late(order, rows)


@contextmanager
def _not_again() -> Iterator[None]:
    # Visible in few repairs: of copies alone, by a process that does not end between two of them.
    shares = {"ALONE_SHARE": 1.0, "ENDED_SHARE": 0.0}
    with patch.multiple(repair_plan, **shares), patch.object(OrderForAll, "late", _late_at_first):
        yield


@contextmanager
def _nothing_overtakes() -> Iterator[None]:
    with (
        patch.object(KeyOrder, "overtaken", lambda *_: set()),
        patch.object(KeyOrder, "overtaken_since", lambda *_, **__: (set(), Counter())),
    ):
        yield


@contextmanager
def _siblings_are_not_asked_for() -> Iterator[None]:
    with (
        patch.multiple(repair_plan, WINDOW_SHARE=1.0),
        patch.object(Siblings, "_is_missing", lambda *_: False),
    ):
        yield


def _asks_all_groups(stores: Mapping[str, Any], *, to: object, progress: Progress) -> Revoked:
    return Revoked(stores, to=None, progress=progress)


@contextmanager
def _any_group_discards_for_all() -> Iterator[None]:
    # Visible in few repairs: of copies alone, where groups have different discards.
    shares = {"ALONE_SHARE": 1.0, "DISCARDED_SHARE": 0.4, "ENDED_SHARE": 0.0}
    with (
        patch.multiple(repair_plan, **shares),
        patch.object(order_for_all, "Revoked", _asks_all_groups),
    ):
        yield


class _ByTimes(key_order._OfOneKey):
    """Takes the number of each arrival for one that the outbox has purged."""

    def add(self, arrival: Arrival, position: EventPosition | None) -> None:
        super().add(arrival, None)
        del position


class _ByAnyArrival(key_order._OfOneKey):
    """Takes each arrival for a later one."""

    def add(self, arrival: Arrival, position: EventPosition | None) -> None:
        super().add(arrival, position and replace(position, seq=sys.maxsize))


_siblings = hand_over.siblings


def _siblings_of_all_sources(t: Tables, d: Dialect, **given: Any) -> Select[Any]:
    return _siblings(t, d, **given | {"source": t.outbox.c.source})


@contextmanager
def _all_groups_get_what_one_lacks() -> Iterator[None]:
    missing = {Verdict.MISSING_DOWNSTREAM: decisions._publish_again}
    with (
        patch.dict(decisions._DECISIONS, missing),
        patch.object(Policy, "young_for_all", None),
    ):
        yield


@contextmanager
def _revoked_is_not_asked_for_a_release() -> Iterator[None]:
    class NothingRevoked(Revoked):
        """Knows neither rollbacks nor discards."""

        def among(self, rows: Sequence[RowSeen]) -> dict[UUID, str]:
            del rows
            return {}

    with patch.object(releases, "Revoked", NothingRevoked):
        yield


def _often_lost(
    owner: type, name: str, defect: Callable[..., Any]
) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context with a defect, for repairs that each have an inbox with lost rows."""

    @contextmanager
    def applied() -> Iterator[None]:
        shares = {"LOST_SHARE": 1.0, "DISCARDED_SHARE": 0.0, "ENDED_SHARE": 0.0}
        with patch.multiple(repair_plan, **shares), patch.object(owner, name, defect):
            yield

    return applied


_why_not = LostRows.why_not


def _asks_the_one_group(
    lost: LostRows, *given: Any, to: str | None = None, **of: Any
) -> str | None:
    return None if to is None else _why_not(lost, *given, to=to, **of)


OF_REPAIRS: Final = (
    Mutant(
        name="N4 what was taken back is delivered",
        applied=instead(SqlRepairStore, "taken_back", lambda *_: set()),
        stories=(broken.record_is_lost_and_taken_back,),
    ),
    Mutant(
        name="N4 delivered after later events of its key",
        applied=_nothing_overtakes,
        stories=(broken.record_is_lost_before_another_of_its_key,),
    ),
    Mutant(
        name="N6 all groups get a copy of what one lacks, however little they keep",
        applied=_all_groups_get_what_one_lacks,
        stories=(broken.record_is_lost,),
    ),
    Mutant(
        name="published again after later events of its key",
        applied=instead(OrderForAll, "late", lambda *_, **__: {}),
        stories=(broken.record_is_lost_before_another_of_its_key,),
    ),
    Mutant(
        name="what an operator has discarded is delivered",
        applied=instead(SqlRepairStore, "discarded", lambda *_, **__: set()),
        stories=(broken.record_is_lost,),
    ),
    Mutant(
        name="a rollback is published again that another group has discarded",
        applied=instead(repair, "PublishAgain", _AsksOneGroup),
        stories=(broken.rollback_is_lost,),
    ),
    Mutant(
        name="the order is not looked up again before each batch of copies",
        applied=_not_again,
        stories=(key_stories.latest_record_of_a_key_is_lost,),
    ),
    Mutant(
        name="an event comes to a group before an earlier one of its key that it lacks",
        applied=_siblings_are_not_asked_for,
        stories=(broken.records_of_a_key_are_lost,),
    ),
    Mutant(
        name="what one group has discarded is not lacked by any",
        applied=_any_group_discards_for_all,
        stories=(key_stories.records_of_a_key_are_lost_for_groups,),
    ),
    Mutant(
        name="a former name's events are in order with those of the present one",
        applied=instead(hand_over, "siblings", _siblings_of_all_sources),
        stories=(key_stories.record_is_lost_after_a_change_of_name,),
    ),
    Mutant(
        name="clocks decide what has overtaken an event",
        applied=instead(key_order, "_OfOneKey", _ByTimes),
        stories=(key_stories.record_is_lost_where_a_clock_went_back,),
    ),
    Mutant(
        name="an event is left to an operator after an earlier one of its key",
        applied=instead(key_order, "_OfOneKey", _ByAnyArrival),
        stories=(key_stories.record_is_lost_where_a_clock_went_back,),
    ),
    Mutant(
        name="what a relay has left is released however old it is",
        applied=instead(releases, "may_be_forgotten", lambda *_, **__: False),
        stories=(release_stories.relay_is_gone_for_longer_than_rows_are_kept,),
    ),
    Mutant(
        name="what a relay has left is released though it was taken back",
        applied=_revoked_is_not_asked_for_a_release,
        stories=(release_stories.is_taken_back_while_a_relay_is_gone,),
    ),
    Mutant(
        name="what an inbox has lost is sent once more",
        applied=_often_lost(LostRows, "why_not", lambda *_, **__: None),
        stories=(broken.record_is_lost,),
    ),
    Mutant(
        name="a group's copy is for all, whatever the others' inboxes have lost",
        applied=_often_lost(LostRows, "why_not", _asks_the_one_group),
        stories=(broken.record_is_lost,),
    ),
    Mutant(
        name="what a relay has left is released whatever an inbox has lost",
        applied=_often_lost(LostRows, "why_not", lambda *_, **__: None),
        stories=(release_stories.relay_is_gone_and_no_row_says_that_it_was_sent,),
    ),
    Mutant(
        name="what a good run found in order is sent once more",
        applied=_often_lost(KnownInOrder, "had", lambda *_: False),
        stories=(broken.record_is_lost,),
    ),
)
