"""The two lifecycles, written a second time by hand."""

from __future__ import annotations

import itertools
import re

import pytest

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus
from shieldtx.errors import IllegalTransition

OUTBOX_ARROWS = {
    (None, "INIT"),
    (None, "HALF"),
    ("HALF", "INIT"),
    ("HALF", "DISCARDED"),
    ("HALF", "UNRESOLVED"),
    ("UNRESOLVED", "INIT"),
    ("UNRESOLVED", "DISCARDED"),
    ("INIT", "PROCESSING"),
    ("PROCESSING", "PROCESSED"),
    ("PROCESSING", "INIT"),
    ("PROCESSING", "PROCESSING"),
    ("PROCESSING", "FAILED"),
    ("FAILED", "INIT"),
    ("FAILED", "DISCARDED"),
    ("PROCESSED", "INIT"),
    ("INIT", "DISCARDED"),
}
INBOX_ARROWS = {
    (None, "INIT"),
    (None, "PROCESSING"),
    ("INIT", "PROCESSING"),
    ("PROCESSING", "PROCESSED"),
    ("PROCESSING", "PROCESSING"),
    ("PROCESSING", "MAX_RECONSUMED"),
    ("PROCESSING", "DEAD"),
    ("DEAD", "PROCESSING"),
    ("DEAD", "MAX_RECONSUMED"),
    ("DEAD", "DISCARDED"),
    ("DEAD", "FENCED"),
    (None, "FENCED"),
}
BOTH = pytest.mark.parametrize(
    ("lifecycle", "arrows", "statuses"),
    [(OUTBOX, OUTBOX_ARROWS, OutboxStatus), (INBOX, INBOX_ARROWS, InboxStatus)],
    ids=["outbox", "inbox"],
)


@BOTH
def test_transitions_are_those_of_the_design_and_no_others(lifecycle, arrows, statuses):
    drawn = [(t.source, t.target) for t in lifecycle.transitions]
    assert set(drawn) == arrows
    assert len(drawn) == len(arrows), "an arrow is drawn twice"


@BOTH
def test_allows_agrees_with_the_transitions_for_every_pair(lifecycle, arrows, statuses):
    for source, target in itertools.product([None, *statuses], statuses):
        assert lifecycle.allows(source, target) == ((source, target) in arrows)


@BOTH
def test_every_state_is_reached_and_every_enum_member_is_one(lifecycle, arrows, statuses):
    assert set(lifecycle.states) == set(statuses)
    assert {target for _, target in arrows} == set(statuses)


@BOTH
def test_guard_of_an_update_names_the_sources_of_its_target(lifecycle, arrows, statuses):
    for target in statuses:
        sources = {source for source, t in arrows if t == target and source is not None}
        if sources:
            assert set(lifecycle.sources_of(target)) == sources


def test_no_update_enters_a_state_of_new_rows_only():
    with pytest.raises(IllegalTransition, match="no outbox row enters HALF"):
        OUTBOX.sources_of(OutboxStatus.HALF)
    with pytest.raises(IllegalTransition, match="no inbox row enters INIT"):
        INBOX.sources_of(InboxStatus.INIT)


def test_update_may_name_some_of_the_sources_but_not_none():
    claimed = (OutboxStatus.PROCESSING,)
    assert OUTBOX.sources_of(OutboxStatus.INIT, among=claimed) == claimed
    with pytest.raises(IllegalTransition, match="no outbox row enters DISCARDED from PROCESSING"):
        OUTBOX.sources_of(OutboxStatus.DISCARDED, among=claimed)


@BOTH
def test_only_an_operator_or_a_repair_moves_a_settled_row(lifecycle, arrows, statuses):
    leaving = {t for t in lifecycle.transitions if t.source in lifecycle.settled}
    others = {
        (t.source, t.target) for t in leaving if not t.cause.startswith(("an operator", "a repair"))
    }
    # A parked event whose upstream takes it back needs no operator any more.
    parked = {(InboxStatus.DEAD, InboxStatus.FENCED)}
    assert others == (parked if lifecycle is INBOX else set())


@BOTH
def test_only_states_without_a_wait_are_purgeable(lifecycle, arrows, statuses):
    waiting = {t.source for t in lifecycle.transitions if not t.cause.startswith("a repair")}
    assert lifecycle.purgeable == set(statuses) - waiting
    assert lifecycle.purgeable <= lifecycle.settled


@BOTH
def test_diagram_has_one_line_per_transition_with_its_cause(lifecycle, arrows, statuses):
    first, *lines = lifecycle.mermaid().splitlines()
    assert first == "stateDiagram-v2"
    drawn = [re.fullmatch(r"    (\S+) --> (\w+): (.+)", line) for line in lines]
    assert all(drawn)
    assert {(m[1].replace("[*]", "") or None, m[2]) for m in drawn} == arrows
    assert all(m[3] and ":" not in m[3] for m in drawn), "a colon would end the label"
