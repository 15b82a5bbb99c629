"""What the rules say, for every combination of facts."""

from __future__ import annotations

from itertools import product

import pytest

from shieldtx.reconcile.rules import RULES, VOCABULARY, Fact, Verdict, Weight, judge
from shieldtx.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind

O, I, V = OutboxStatus, InboxStatus, Verdict  # noqa: E741  the two alphabets of the table below
COMMIT, ROLLBACK = TxKind.COMMIT, TxKind.ROLLBACK

EVERY = [
    dict(zip((fact.value for fact in Fact), values, strict=True))
    for values in product(*(VOCABULARY[fact] for fact in Fact))
    if values[1:3] != (None, None)
]


def differing_in(fact):
    """Return each combination beside the one that differs from it in one true or false fact."""
    return [
        ({**facts, fact: False}, {**facts, fact: True}) for facts in EVERY if facts[fact] is False
    ]


def test_every_combination_of_facts_has_one_verdict():
    assert len(EVERY) == 2 * (8 * 7 - 1) * 2**3
    assert {type(judge(**facts)) for facts in EVERY} == {Verdict}


def test_every_verdict_is_reached():
    assert {judge(**facts) for facts in EVERY} == set(Verdict)


def test_every_rule_decides_something_that_no_earlier_rule_does():
    def decides(facts):
        return next(
            number
            for number, rule in enumerate(RULES)
            if all(facts[fact.value] in allowed for fact, allowed in rule.when.items())
        )

    assert {decides(facts) for facts in EVERY} == set(range(len(RULES)))


def test_the_vocabulary_covers_every_status_of_both_lifecycles():
    assert set(VOCABULARY[Fact.UPSTREAM]) == {None, *OutboxStatus}
    assert set(VOCABULARY[Fact.DOWNSTREAM]) == {None, *InboxStatus}


def test_the_rules_use_no_word_outside_the_vocabulary():
    for rule in RULES:
        for fact, allowed in rule.when.items():
            assert allowed, (rule, fact)
            assert allowed < set(VOCABULARY[fact]), (rule, fact)


def test_a_row_on_neither_side_cannot_be_judged():
    with pytest.raises(ValueError, match="neither side"):
        judge(kind=COMMIT, upstream=None, downstream=None, answered=True, quiet=True, kept=True)


def test_nothing_that_moved_after_the_watermark_is_a_mismatch():
    young = [facts for facts in EVERY if not facts["quiet"]]
    assert not [facts for facts in young if judge(**facts).is_mismatch]


def test_waiting_turns_rows_in_flight_into_something_else_and_changes_nothing_else():
    for young, old in differing_in("quiet"):
        if judge(**young) is V.IN_FLIGHT:
            assert judge(**old) is not V.IN_FLIGHT
        else:
            assert judge(**old) is judge(**young)


def test_no_row_that_may_have_been_purged_is_missed():
    absences = {
        V.MISSING_DOWNSTREAM,
        V.UNKNOWN_UPSTREAM,
        V.NEITHER_EFFECT_NOR_COMPENSATION,
        V.ROLLBACK_NOT_COMPENSATED,
    }
    for purged, kept in differing_in("kept"):
        assert judge(**purged) not in absences
        assert (judge(**kept) in absences) == (judge(**purged) is V.TOO_OLD)


def test_an_answer_matters_only_to_what_was_given_up_and_to_rollbacks_that_are_settled():
    for unanswered, answered in differing_in("answered"):
        if judge(**unanswered) is not judge(**answered):
            assert unanswered["upstream"] is O.PROCESSED
            assert (unanswered["kind"], unanswered["downstream"]) in {
                (COMMIT, I.MAX_RECONSUMED),
                (ROLLBACK, I.PROCESSED),
            }


def test_a_clean_verdict_needs_both_sides_at_rest():
    for facts in EVERY:
        if judge(**facts).weight in {Weight.CLEAN, Weight.PARKED}:
            assert facts["upstream"] in OUTBOX.settled
            assert facts["downstream"] in {None, *INBOX.settled}


def test_an_event_that_was_not_sent_disagrees_with_every_row_downstream():
    not_sent = set(OutboxStatus) - {O.PROCESSED}
    for facts in EVERY:
        if facts["upstream"] in not_sent and facts["downstream"] is not None and facts["quiet"]:
            assert judge(**facts) is V.STATUS_DISAGREES


@pytest.mark.parametrize(
    ("kind", "upstream", "downstream", "answered", "verdict"),
    [
        (COMMIT, O.PROCESSED, I.PROCESSED, False, V.MATCHED),
        (COMMIT, O.PROCESSED, I.MAX_RECONSUMED, True, V.REFUSED),
        (COMMIT, O.PROCESSED, I.MAX_RECONSUMED, False, V.NEITHER_EFFECT_NOR_COMPENSATION),
        (COMMIT, O.PROCESSED, I.FENCED, False, V.REFUSED),
        (COMMIT, O.PROCESSED, I.DEAD, False, V.STATUS_DISAGREES),
        (COMMIT, O.PROCESSED, I.INIT, False, V.STUCK),
        (COMMIT, O.PROCESSED, I.PROCESSING, False, V.STUCK),
        (COMMIT, O.PROCESSED, None, False, V.MISSING_DOWNSTREAM),
        (COMMIT, None, I.PROCESSED, False, V.UNKNOWN_UPSTREAM),
        (COMMIT, None, I.FENCED, False, V.UNKNOWN_UPSTREAM),
        (COMMIT, None, I.INIT, False, V.UNKNOWN_UPSTREAM),
        (COMMIT, O.INIT, None, False, V.STUCK),
        (COMMIT, O.PROCESSING, None, False, V.STUCK),
        (COMMIT, O.HALF, None, False, V.STUCK),
        (COMMIT, O.FAILED, None, False, V.PARKED),
        (COMMIT, O.UNRESOLVED, None, False, V.PARKED),
        (COMMIT, O.DISCARDED, None, False, V.NEVER_SENT),
        (COMMIT, O.INIT, I.PROCESSED, False, V.STATUS_DISAGREES),
        (COMMIT, O.FAILED, I.PROCESSED, False, V.STATUS_DISAGREES),
        (COMMIT, O.DISCARDED, I.MAX_RECONSUMED, True, V.STATUS_DISAGREES),
        (COMMIT, O.HALF, I.PROCESSING, False, V.STATUS_DISAGREES),
        (ROLLBACK, O.PROCESSED, I.PROCESSED, True, V.MATCHED),
        (ROLLBACK, O.PROCESSED, I.PROCESSED, False, V.ROLLBACK_NOT_COMPENSATED),
        (ROLLBACK, O.PROCESSED, I.DEAD, False, V.PARKED),
        (ROLLBACK, O.PROCESSED, None, False, V.MISSING_DOWNSTREAM),
        (ROLLBACK, O.PROCESSED, I.MAX_RECONSUMED, True, V.STATUS_DISAGREES),
        (ROLLBACK, O.FAILED, None, False, V.PARKED),
        (ROLLBACK, None, I.PROCESSED, True, V.UNKNOWN_UPSTREAM),
    ],
)
def test_rows_past_the_watermark_are_judged_by_both_sides(
    kind, upstream, downstream, answered, verdict
):
    found = judge(
        kind=kind,
        upstream=upstream,
        downstream=downstream,
        answered=answered,
        quiet=True,
        kept=True,
    )
    assert found is verdict


def test_every_verdict_says_what_it_means_and_what_to_do():
    for verdict in Verdict:
        assert verdict.value == verdict.name
        assert verdict.meaning.endswith(".")
        assert verdict.advice.endswith(".")
    assert len({verdict.meaning for verdict in Verdict}) == len(Verdict)


def test_only_clean_rows_are_counted_without_being_listed():
    assert {verdict for verdict in Verdict if not verdict.is_listed} == {
        V.MATCHED,
        V.REFUSED,
        V.NEVER_SENT,
    }
