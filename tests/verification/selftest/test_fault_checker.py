"""Tests that the checker finds violations: each test plants one violation, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.verification.faults.bank import OPENING_BALANCE
from tests.verification.faults.checker import Counts, Evidence, count
from tests.verification.faults.history import Step
from tests.verification.faults.journal import Journal, Operations
from tests.verification.faults.topics import Read

A, B, C = (UUID(int=n) for n in (1, 2, 3))
FOREIGN = UUID(int=99)


def record(transfer: UUID, seq: int, *, kind: str = "COMMIT", offset: int = 0) -> Read:
    return Read(
        topic=f"bank.{kind.lower()}",
        partition=0,
        offset=offset,
        id=transfer,
        kind=kind,
        key="ada",
        seq=seq if kind == "COMMIT" else None,
        causation=None,
    )


@pytest.fixture
def sound() -> Evidence:
    """Return three transfers of 10: credited, credited, refused."""
    rollback = UUID(int=1003)
    return Evidence(
        operations=Operations(answers={A: "ok", B: "ok", C: "info"}),
        records=[
            record(A, 1),
            record(B, 2),
            record(C, 3),
            record(rollback, 0, kind="ROLLBACK"),
        ],
        transfers={A: ("ada", 1, 10), B: ("ada", 2, 10), C: ("ada", 3, 10)},
        credits=[(A, "ada", 1, 10), (B, "ada", 2, 10)],
        refunds=[C],
        withdrawals=[],
        outbox={A: ("PROCESSED", ""), B: ("PROCESSED", ""), C: ("PROCESSED", "")},
        rollbacks={rollback: "PROCESSED"},
        parked=frozenset(),
        illegal=[],
        balances=(OPENING_BALANCE - 20, 20),
        accounts=1,
    )


def only(counts: Counts) -> set[str]:
    """Return the names of the violated invariants."""
    names = ("lost", "ghost", "double", "inversions", "both", "neither", "illegal", "money")
    return {name for name in names if getattr(counts, name)}


def test_a_sound_run_is_clean(sound):
    counts = count(sound)
    assert counts.clean
    assert (counts.committed, counts.records, counts.effects, counts.compensations) == (3, 4, 2, 1)


def test_a_record_twice_is_a_duplicate_and_no_violation(sound):
    counts = count(replace(sound, records=[*sound.records, record(A, 1, offset=9)]))
    assert counts.clean
    assert counts.duplicate_records == 1


def test_what_a_repair_has_handed_over_needs_no_record(sound):
    records = [record for record in sound.records if record.id != B]
    assert only(count(replace(sound, records=records))) == {"lost"}
    assert count(replace(sound, records=records, handed_over=frozenset({B}))).clean


@pytest.mark.parametrize(
    ("planted", "broken"),
    [
        ({"records": [record(A, 1), record(C, 3)]}, {"lost"}),
        ({"operations": Operations(answers={FOREIGN: "ok"})}, {"lost"}),
        ({"operations": Operations(answers={A: "fail"})}, {"ghost"}),
        ({"rollbacks": {}}, {"ghost"}),
        ({"illegal": [Step(place="shield_inbox", before=None, after="DEAD", rows=2)]}, {"illegal"}),
        ({"balances": (OPENING_BALANCE - 20, 30)}, {"money"}),
        ({"refunds": [], "balances": (OPENING_BALANCE - 30, 20)}, {"neither", "money"}),
        ({"refunds": [C, C]}, {"double"}),
        ({"refunds": [B, C]}, {"both"}),
        ({"withdrawals": [B]}, {"both"}),
    ],
)
def test_a_violation_is_counted_under_its_name(sound, planted, broken):
    assert only(count(replace(sound, **planted))) == broken


def test_a_record_without_a_transaction_is_a_ghost(sound):
    counts = count(replace(sound, records=[*sound.records, record(FOREIGN, 4)]))
    assert only(counts) == {"ghost"}


def test_two_effects_of_one_event_are_double(sound):
    counts = count(replace(sound, credits=[*sound.credits, (B, "ada", 2, 10)]))
    assert only(counts) == {"double"}


def test_effects_out_of_the_order_of_their_key_are_inversions(sound):
    counts = count(replace(sound, credits=sound.credits[::-1]))
    assert only(counts) == {"inversions"}


def test_unordered_records_are_inversions_but_repetitions_not(sound):
    again = [record(A, 1), record(B, 2), record(A, 1), *sound.records[2:]]
    assert count(replace(sound, records=again)).clean
    swapped = [record(B, 2), record(A, 1), *sound.records[2:]]
    assert only(count(replace(sound, records=swapped))) == {"inversions"}


def test_dead_letter_is_neither_lost_nor_without_an_outcome(sound):
    failed = sound.outbox | {C: ("FAILED", "too large")}
    evidence = replace(
        sound,
        records=[record(A, 1), record(B, 2)],
        outbox=failed,
        refunds=[],
        parked=frozenset({C}),
        balances=(OPENING_BALANCE - 30, 20),
    )
    assert count(evidence).clean
    without_reason = replace(evidence, outbox=sound.outbox | {C: ("FAILED", "")})
    assert only(count(without_reason)) == {"lost"}


def test_journal_separates_interrupted_from_failed_operations(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    for operation in (A, B, C):
        journal.begin(operation)
    journal.end(A, answer="ok")
    journal.end(B, answer="fail")
    journal.close()
    with path.open("a") as file:
        file.write('{"id": "')  # cut off by a kill
    operations = Operations.read(path)
    assert operations.answers == {A: "ok", B: "fail", C: "info"}
