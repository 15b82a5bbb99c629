"""The verdict of the rules for every combination of facts."""

from __future__ import annotations

from itertools import product

import pytest

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.facts import VOCABULARY, Fact
from shieldtx.reconcile.rules import PAIRS, TOPICS
from shieldtx.reconcile.verdicts import Verdict, Weight

O, I, V, F = OutboxStatus, InboxStatus, Verdict, Fact  # noqa: E741  short for the tables below
COMMIT, ROLLBACK = TxKind.COMMIT, TxKind.ROLLBACK
BOOKS = {"pairs": PAIRS, "topics": TOPICS}


def combinations(book, is_possible):
    """Return every combination of a book's facts that an event can show."""
    every = [
        dict(zip(book.facts, values, strict=True))
        for values in product(*(VOCABULARY[fact] for fact in book.facts))
    ]
    return [facts for facts in every if is_possible(facts)]


def has_a_row(facts):
    """Return whether a side has the event; an event on one side alone cannot differ."""
    sides = (facts[F.UPSTREAM], facts[F.DOWNSTREAM])
    return sides != (None, None) and (is_same(facts) or None not in sides)


def is_same(facts):
    """Return whether both sides agree on the event, as far as there are two."""
    return facts[F.SAME_PAYLOAD] and facts[F.SAME_ENVELOPE]


def has_a_trace(facts):
    """Return whether a row or a record exists; without a record, none is repeated or out of order.

    There is no order without the row either, which has the key and the write time.
    """
    row, record = facts[F.UPSTREAM] is not None, facts[F.RECORDED]
    return (
        (row or record)
        and (record or not facts[F.REPEATED])
        and ((row and record) or facts[F.IN_ORDER])
    )


OF_PAIRS = combinations(PAIRS, has_a_row)
OF_TOPICS = combinations(TOPICS, has_a_trace)
EVERY = [(PAIRS, facts) for facts in OF_PAIRS] + [(TOPICS, facts) for facts in OF_TOPICS]


def differing_in(fact):
    """Pair each combination with the one in which this fact is true instead of false."""
    return [
        (book, facts, {**facts, fact: True})
        for book, facts in EVERY
        if fact in book.facts and facts[fact] is False
    ]


def judge_pair(kind, upstream, downstream, **facts):
    """Judge two rows past the watermark; omitted facts are in order, and there is no answer."""
    known = {
        F.SAME_PAYLOAD: True,
        F.SAME_ENVELOPE: True,
        F.ANSWERED: False,
        F.ENTITLED: True,
        F.OWES: True,
        F.WITHIN_LIMIT: True,
    }
    known |= {F.UNDONE_FIRST: False, F.OVERTAKEN: False, F.QUIET: True, F.KEPT: True, F.KIND: kind}
    known |= {F.UPSTREAM: upstream, F.DOWNSTREAM: downstream}
    return PAIRS.judge(known | {F(name): value for name, value in facts.items()})


def judge_record(upstream, *, recorded, **facts):
    known = {F.REPEATED: False, F.IN_ORDER: True, F.QUIET: True, F.KEPT: True}
    known |= {F.UPSTREAM: upstream, F.RECORDED: recorded}
    return TOPICS.judge(known | {F(name): value for name, value in facts.items()})


def test_every_combination_of_facts_has_one_verdict():
    both, one = 7 * 7, 7 + 7
    assert len(OF_PAIRS) == 2 * (both * 2**2 + one) * 3 * 2**7
    assert len(OF_TOPICS) == (7 * (1 + 2 * 2) + 2) * 2**2
    assert {type(book.judge(facts)) for book, facts in EVERY} == {Verdict}


def test_every_verdict_is_reached():
    assert {PAIRS.judge(facts) for facts in OF_PAIRS} == set(PAIRS.verdicts)
    assert {TOPICS.judge(facts) for facts in OF_TOPICS} == set(TOPICS.verdicts)
    assert {*PAIRS.verdicts, *TOPICS.verdicts} == set(Verdict)


@pytest.mark.parametrize("name", BOOKS)
def test_every_rule_decides_a_case_that_no_earlier_rule_does(name):
    book = BOOKS[name]

    def decides(facts):
        return next(
            number
            for number, rule in enumerate(book.rules)
            if all(facts[fact] in allowed for fact, allowed in rule.when.items())
        )

    assert {decides(facts) for of, facts in EVERY if of is book} == set(range(len(book.rules)))


@pytest.mark.parametrize("name", BOOKS)
def test_only_the_last_rule_has_no_conditions(name):
    *others, last = BOOKS[name].rules
    assert all(rule.when for rule in others)
    assert not last.when


def test_vocabulary_covers_every_status_of_both_lifecycles():
    assert set(VOCABULARY) == set(Fact)
    assert set(VOCABULARY[F.KIND]) == set(TxKind)
    assert set(VOCABULARY[F.UPSTREAM]) == {None, *OutboxStatus}
    assert set(VOCABULARY[F.DOWNSTREAM]) == {None, *InboxStatus}


@pytest.mark.parametrize("name", BOOKS)
def test_rules_use_only_the_facts_of_their_book(name):
    book = BOOKS[name]
    assert set(book.facts) == {fact for rule in book.rules for fact in rule.when}
    for rule in book.rules:
        for fact, allowed in rule.when.items():
            assert allowed, (rule, fact)
            assert allowed < set(VOCABULARY[fact]), (rule, fact)


@pytest.mark.parametrize("name", BOOKS)
def test_row_with_an_unknown_fact_cannot_be_judged(name):
    book = BOOKS[name]
    facts = next(facts for of, facts in EVERY if of is book)
    for fact in book.facts:
        with pytest.raises(KeyError):
            book.judge({known: facts[known] for known in facts if known is not fact})


def test_recent_rows_mismatch_only_where_time_changes_nothing():
    """Payloads, attempts of given-up rows, effects and rows parked for an operator do
    not change.
    """
    young = [(book, facts) for book, facts in EVERY if not facts[F.QUIET]]
    accused = {book.judge(facts) for book, facts in young if book.judge(facts).is_mismatch}
    assert accused == {
        V.PAYLOAD_DIFFERS,
        V.ENVELOPE_DIFFERS,
        V.ATTEMPTS_DIFFER,
        V.PARKED,
        V.EFFECT_DESPITE_ROLLBACK,
    }
    assert not any(book.judge(facts).is_mismatch for book, facts in young if book is TOPICS)


def test_time_changes_the_verdict_of_rows_in_flight():
    for book, young, old in differing_in(F.QUIET):
        if book.judge(young) is V.IN_FLIGHT:
            assert book.judge(old) is not V.IN_FLIGHT


def test_time_changes_other_verdicts_only_for_early_answers():
    """An answer that the run may have read too early hides the later verdict."""
    changed = {
        (book.judge(young), book.judge(old))
        for book, young, old in differing_in(F.QUIET)
        if book.judge(young) not in {V.IN_FLIGHT, book.judge(old)}
    }
    assert changed == {
        (V.MATCHED, V.EFFECT_DESPITE_ROLLBACK),
        (V.MATCHED, V.TOO_OLD),
        (V.ON_TOPIC, V.ORDER_INVERTED),
        (V.DUPLICATE_RECORDS, V.ORDER_INVERTED),
    }


def test_possibly_purged_rows_are_not_missed():
    absences = {
        V.MISSING_DOWNSTREAM,
        V.UNKNOWN_UPSTREAM,
        V.ROLLBACK_NOT_COMPENSATED,
        # The absent row caused a rollback, or is the rollback of a tombstone.
        V.EFFECT_DESPITE_ROLLBACK,
        V.STATUS_DISAGREES,
        V.ABSENT_FROM_TOPIC,
        V.RECORD_WITHOUT_ROW,
    }
    for book, purged, kept in differing_in(F.KEPT):
        before, after = book.judge(purged), book.judge(kept)
        if after is before:
            continue
        assert before not in absences
        if before in {V.STUCK, V.PARKED}:
            # An unfinished row stays longer than the row of the other side.
            assert purged[F.UPSTREAM] is None
            assert after in {V.UNKNOWN_UPSTREAM, V.IN_FLIGHT}
        elif before is V.NEITHER_EFFECT_NOR_COMPENSATION:
            # Another fact determines whether its rollback may be purged.
            assert (purged[F.OWES], after) == (True, V.UNKNOWN_UPSTREAM)
        elif after in absences:
            assert before is (V.BEFORE_TOPIC if after is V.ABSENT_FROM_TOPIC else V.TOO_OLD)
        else:
            assert after is before
            assert after not in {V.TOO_OLD, V.BEFORE_TOPIC}


def test_answer_affects_only_rows_settled_downstream():
    for _, unanswered, answered in differing_in(F.ANSWERED):
        if PAIRS.judge(unanswered) is not PAIRS.judge(answered):
            is_given_up = answered[F.DOWNSTREAM] is I.MAX_RECONSUMED
            assert answered[F.UPSTREAM] in {O.PROCESSED, *([None] if is_given_up else [])}
            assert (answered[F.KIND], answered[F.DOWNSTREAM]) in {
                (COMMIT, I.MAX_RECONSUMED),
                (COMMIT, I.PROCESSED),
                (ROLLBACK, I.PROCESSED),
            }


def test_rollback_without_a_cause_accuses_an_effect_only():
    changed = {
        (PAIRS.judge(uncalled), PAIRS.judge(called), called[F.ANSWERED], called[F.QUIET])
        for _, uncalled, called in differing_in(F.ENTITLED)
        if PAIRS.judge(uncalled) is not PAIRS.judge(called)
    }
    assert changed == {
        (V.EFFECT_DESPITE_ROLLBACK, V.MATCHED, True, True),
        (V.TOO_OLD, V.MATCHED, True, True),
    }


def test_group_without_an_effect_never_has_to_compensate() -> None:
    changed = {
        (PAIRS.judge(nothing), PAIRS.judge(owing), owing[F.KIND], owing[F.DOWNSTREAM])
        for _, nothing, owing in differing_in(F.OWES)
        if PAIRS.judge(nothing) is not PAIRS.judge(owing)
    }
    before = {V.ROLLBACK_NOT_COMPENSATED, V.TOO_OLD, V.IN_FLIGHT}
    for kept in (False, True):
        facts = {"owes": None, "kept": kept}
        assert judge_pair(ROLLBACK, O.PROCESSED, I.PROCESSED, **facts) is V.TOO_OLD
        assert judge_pair(ROLLBACK, O.PROCESSED, I.PROCESSED, answered=True, **facts) is V.MATCHED
        assert judge_pair(ROLLBACK, O.PROCESSED, I.PROCESSED, quiet=False, **facts) is V.IN_FLIGHT
    owed = (V.TOO_OLD, V.NEITHER_EFFECT_NOR_COMPENSATION, COMMIT, I.MAX_RECONSUMED)
    assert changed == {owed, *((V.MATCHED, each, ROLLBACK, I.PROCESSED) for each in before)}
    # The group has not confirmed this until it has settled the rollback.
    for status, verdict in ((None, V.MISSING_DOWNSTREAM), (I.INIT, V.STUCK), (I.DEAD, V.PARKED)):
        assert judge_pair(ROLLBACK, O.PROCESSED, status, owes=False) is verdict


def test_database_of_a_group_alone_proves_a_lost_rollback() -> None:
    for upstream in (O.PROCESSED, None):
        pair = (COMMIT, upstream, I.MAX_RECONSUMED)
        assert judge_pair(*pair, kept=False) is V.NEITHER_EFFECT_NOR_COMPENSATION
        assert judge_pair(*pair, kept=False, owes=None) is V.TOO_OLD
        assert judge_pair(*pair, kept=False, quiet=False) is V.IN_FLIGHT
    assert judge_pair(COMMIT, None, I.MAX_RECONSUMED, kept=False, answered=True) is V.TOO_OLD
    # The upstream would still have the event: its absence is investigated first.
    assert judge_pair(COMMIT, None, I.MAX_RECONSUMED) is V.UNKNOWN_UPSTREAM


def test_effect_after_its_compensation_is_always_a_mismatch() -> None:
    changed = {
        (PAIRS.judge(late), PAIRS.judge(right))
        for _, right, late in differing_in(F.UNDONE_FIRST)
        if PAIRS.judge(late) is not PAIRS.judge(right)
    }
    assert changed == {
        (V.EFFECT_DESPITE_ROLLBACK, V.MATCHED),
        (V.EFFECT_DESPITE_ROLLBACK, V.TOO_OLD),
    }
    for quiet in (False, True):
        facts = {"undone_first": True, "answered": False, "quiet": quiet}
        judged = judge_pair(COMMIT, O.PROCESSED, I.PROCESSED, **facts)
        assert judged is V.EFFECT_DESPITE_ROLLBACK


def test_attempts_above_the_limit_affect_given_up_events_only():
    changed = {
        (PAIRS.judge(beyond), PAIRS.judge(within), within[F.KIND])
        for _, beyond, within in differing_in(F.WITHIN_LIMIT)
        if PAIRS.judge(beyond) is not PAIRS.judge(within)
    }
    assert changed == {(V.ATTEMPTS_DIFFER, V.REFUSED, COMMIT)}


def test_different_payloads_precede_all_other_verdicts():
    for _, differing, same in differing_in(F.SAME_PAYLOAD):
        assert PAIRS.judge(differing) is V.PAYLOAD_DIFFERS
        assert PAIRS.judge(same) is not V.PAYLOAD_DIFFERS


def test_different_envelopes_precede_all_but_payloads():
    for _, differing, same in differing_in(F.SAME_ENVELOPE):
        if same[F.SAME_PAYLOAD]:
            assert PAIRS.judge(differing) is V.ENVELOPE_DIFFERS
        assert PAIRS.judge(same) is not V.ENVELOPE_DIFFERS


def test_clean_or_parked_pair_has_both_sides_settled():
    for facts in OF_PAIRS:
        verdict = PAIRS.judge(facts)
        if verdict.weight is Weight.CLEAN or verdict is V.PARKED:
            assert facts[F.DOWNSTREAM] in {None, *INBOX.settled}
            # A compensation that failed waits longer than its rollback is kept.
            is_longer = verdict is V.PARKED and facts[F.DOWNSTREAM] is I.DEAD
            assert facts[F.UPSTREAM] in OUTBOX.settled or is_longer


def test_clean_pair_has_one_payload_and_a_required_answer():
    for facts in OF_PAIRS:
        if PAIRS.judge(facts) in {V.MATCHED, V.REFUSED}:
            assert is_same(facts)
            is_rollback = facts[F.KIND] is ROLLBACK
            owes = facts[F.OWES] if is_rollback else facts[F.DOWNSTREAM] is I.MAX_RECONSUMED
            assert facts[F.ANSWERED] or owes is False


def test_unsendable_event_disagrees_with_any_row_downstream():
    for facts in OF_PAIRS:
        is_ended = facts[F.UPSTREAM] not in {None, O.PROCESSED, O.INIT, O.PROCESSING}
        if is_ended and facts[F.DOWNSTREAM] and facts[F.QUIET] and is_same(facts):
            assert PAIRS.judge(facts) is V.STATUS_DISAGREES


def test_unfinished_row_is_reported_after_its_outbox_row_purge():
    for status in (I.INIT, I.PROCESSING):
        assert judge_pair(COMMIT, None, status, quiet=True, kept=False) is V.STUCK
        assert judge_pair(COMMIT, None, status, quiet=False, kept=False) is V.IN_FLIGHT
        assert judge_pair(COMMIT, None, status, quiet=True, kept=True) is V.UNKNOWN_UPSTREAM
    for quiet in (False, True):
        assert judge_pair(ROLLBACK, None, I.DEAD, quiet=quiet, kept=False) is V.PARKED


def test_open_event_that_has_arrived_waits_for_its_relay_only():
    for facts in OF_PAIRS:
        if facts[F.UPSTREAM] in {O.INIT, O.PROCESSING} and is_same(facts):
            assert PAIRS.judge(facts) is (V.STUCK if facts[F.QUIET] else V.IN_FLIGHT)


def test_tombstone_needs_the_rollback_that_left_it():
    changed = {
        (PAIRS.judge(alone), PAIRS.judge(overtaken), overtaken[F.KIND], overtaken[F.DOWNSTREAM])
        for _, alone, overtaken in differing_in(F.OVERTAKEN)
        if PAIRS.judge(alone) is not PAIRS.judge(overtaken)
    }
    before = {V.STATUS_DISAGREES, V.TOO_OLD, V.IN_FLIGHT}
    refused = {(verdict, V.REFUSED, COMMIT, I.FENCED) for verdict in before}
    assert changed == refused | {(V.UNKNOWN_UPSTREAM, V.TOO_OLD, COMMIT, I.FENCED)}


def test_tombstone_outlives_an_event_much_older_than_rollback():
    assert judge_pair(COMMIT, None, I.FENCED, overtaken=True) is V.TOO_OLD
    assert judge_pair(COMMIT, None, I.FENCED, overtaken=True, quiet=False) is V.IN_FLIGHT


@pytest.mark.parametrize(
    ("kind", "upstream", "downstream", "answered", "verdict"),
    [
        (COMMIT, O.PROCESSED, I.PROCESSED, False, V.MATCHED),
        (COMMIT, O.PROCESSED, I.PROCESSED, True, V.MATCHED),
        (COMMIT, O.PROCESSED, I.MAX_RECONSUMED, True, V.REFUSED),
        (COMMIT, O.PROCESSED, I.MAX_RECONSUMED, False, V.NEITHER_EFFECT_NOR_COMPENSATION),
        (COMMIT, O.PROCESSED, I.FENCED, False, V.STATUS_DISAGREES),
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
        (COMMIT, O.INIT, I.PROCESSED, False, V.STUCK),
        (COMMIT, O.PROCESSING, I.MAX_RECONSUMED, True, V.STUCK),
        (ROLLBACK, O.INIT, I.PROCESSED, True, V.STUCK),
        (COMMIT, O.FAILED, I.PROCESSED, False, V.STATUS_DISAGREES),
        (COMMIT, O.DISCARDED, I.MAX_RECONSUMED, True, V.STATUS_DISAGREES),
        (COMMIT, O.HALF, I.PROCESSING, False, V.STATUS_DISAGREES),
        (ROLLBACK, O.PROCESSED, I.PROCESSED, True, V.MATCHED),
        (ROLLBACK, O.PROCESSED, I.PROCESSED, False, V.ROLLBACK_NOT_COMPENSATED),
        (ROLLBACK, O.PROCESSED, I.DEAD, False, V.PARKED),
        (ROLLBACK, O.PROCESSED, I.DISCARDED, False, V.DISCARDED),
        (ROLLBACK, O.PROCESSED, I.DISCARDED, True, V.DISCARDED),
        (ROLLBACK, O.DISCARDED, None, False, V.DISCARDED),
        (ROLLBACK, O.DISCARDED, I.PROCESSED, True, V.STATUS_DISAGREES),
        (ROLLBACK, None, I.DISCARDED, False, V.UNKNOWN_UPSTREAM),
        (COMMIT, O.PROCESSED, I.DISCARDED, False, V.DISCARDED),
        (COMMIT, O.PROCESSED, I.DEAD, False, V.PARKED),
        (ROLLBACK, O.PROCESSED, None, False, V.MISSING_DOWNSTREAM),
        (ROLLBACK, O.PROCESSED, I.PROCESSING, False, V.STUCK),
        (ROLLBACK, O.PROCESSED, I.MAX_RECONSUMED, True, V.STATUS_DISAGREES),
        (ROLLBACK, O.INIT, None, False, V.STUCK),
        (ROLLBACK, O.FAILED, None, False, V.PARKED),
        (ROLLBACK, None, I.PROCESSED, True, V.UNKNOWN_UPSTREAM),
    ],
)
def test_rows_past_the_watermark_are_judged_by_both_sides(
    kind, upstream, downstream, answered, verdict
):
    assert judge_pair(kind, upstream, downstream, answered=answered) is verdict


@pytest.mark.parametrize(
    ("downstream", "facts", "verdict"),
    [
        (I.PROCESSED, {"answered": True, "entitled": False}, V.EFFECT_DESPITE_ROLLBACK),
        (I.PROCESSED, {"answered": False, "entitled": False}, V.MATCHED),
        (I.MAX_RECONSUMED, {"answered": True, "within_limit": False}, V.ATTEMPTS_DIFFER),
        (
            I.MAX_RECONSUMED,
            {"answered": False, "within_limit": False},
            V.NEITHER_EFFECT_NOR_COMPENSATION,
        ),
        (I.PROCESSED, {"same_payload": False}, V.PAYLOAD_DIFFERS),
        (I.PROCESSED, {"same_payload": False, "quiet": False}, V.PAYLOAD_DIFFERS),
        (I.PROCESSED, {"same_envelope": False}, V.ENVELOPE_DIFFERS),
        (I.PROCESSED, {"same_envelope": False, "same_payload": False}, V.PAYLOAD_DIFFERS),
    ],
)
def test_sent_and_settled_event_may_still_be_wrong(downstream, facts, verdict):
    assert judge_pair(COMMIT, O.PROCESSED, downstream, **facts) is verdict


@pytest.mark.parametrize(
    ("upstream", "facts", "verdict"),
    [
        (O.PROCESSED, {"recorded": True}, V.ON_TOPIC),
        (O.PROCESSED, {"recorded": True, "repeated": True}, V.DUPLICATE_RECORDS),
        (O.PROCESSED, {"recorded": True, "in_order": False}, V.ORDER_INVERTED),
        (O.PROCESSED, {"recorded": True, "in_order": False, "quiet": False}, V.ON_TOPIC),
        (O.PROCESSED, {"recorded": False}, V.ABSENT_FROM_TOPIC),
        (O.PROCESSED, {"recorded": False, "quiet": False}, V.IN_FLIGHT),
        (O.PROCESSED, {"recorded": False, "kept": False}, V.BEFORE_TOPIC),
        # The record was sent, and its relay died before the write-back.
        (O.INIT, {"recorded": True}, V.ON_TOPIC),
        (O.PROCESSING, {"recorded": True, "repeated": True}, V.ON_TOPIC),
        (O.INIT, {"recorded": False}, V.NOT_ON_TOPIC),
        (O.HALF, {"recorded": False}, V.NOT_ON_TOPIC),
        (O.FAILED, {"recorded": False}, V.NOT_ON_TOPIC),
        (O.HALF, {"recorded": True}, V.STATUS_DISAGREES),
        (O.FAILED, {"recorded": True}, V.STATUS_DISAGREES),
        (O.DISCARDED, {"recorded": True}, V.STATUS_DISAGREES),
        (O.UNRESOLVED, {"recorded": True, "repeated": True}, V.STATUS_DISAGREES),
        (O.DISCARDED, {"recorded": True, "quiet": False}, V.IN_FLIGHT),
        (None, {"recorded": True}, V.RECORD_WITHOUT_ROW),
        (None, {"recorded": True, "quiet": False}, V.IN_FLIGHT),
        (None, {"recorded": True, "kept": False}, V.TOO_OLD),
    ],
)
def test_event_and_its_topic_are_judged_by_row_and_record(upstream, facts, verdict):
    assert judge_record(upstream, **facts) is verdict


def test_every_verdict_has_a_meaning_and_an_advice():
    for verdict in Verdict:
        assert verdict.value == verdict.name
        assert verdict.meaning.endswith(".")
        assert verdict.advice.endswith(".")
    assert len({verdict.meaning for verdict in Verdict}) == len(Verdict)


def test_status_advice_names_each_contradicting_outbox_status():
    advice = V.STATUS_DISAGREES.advice
    for status in ("FAILED", "HALF", "UNRESOLVED", "DISCARDED"):
        assert status in advice
    for command in ("dead show", "dead replay", "half commit", "half rollback"):
        assert f"`shieldtx {command}`" in advice


def test_only_clean_rows_are_counted_without_being_listed():
    assert {verdict for verdict in Verdict if not verdict.is_listed} == {
        V.MATCHED,
        V.REFUSED,
        V.NEVER_SENT,
        V.ON_TOPIC,
        V.NOT_ON_TOPIC,
    }


def test_wrong_or_unknown_rows_are_never_clean():
    assert {verdict for verdict in Verdict if verdict.weight is Weight.UNJUDGED} == {
        V.IN_FLIGHT,
        V.TOO_OLD,
        V.BEFORE_TOPIC,
    }
    assert {verdict for verdict in Verdict if verdict.weight is Weight.NOTE} == {
        V.DISCARDED,
        V.DUPLICATE_RECORDS,
    }
