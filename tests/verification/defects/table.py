"""The defects that three independent reviews found, and the harness that finds each one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.verification.defects.harnesses import Harness

_CALLERS = "tests/integration/outbox/test_callers_transactions.py::test_cases_detect_the_defect"
_PUBLISHERS = (
    "tests/integration/outbox/test_arguments_of_publishers.py"
    "::test_calls_detect_a_publisher_that_takes_the_first_session"
)
_RACE = (
    "tests/verification/simulation/test_rollback_race.py"
    "::test_compensation_that_ignores_its_event_is_caught"
)
_HALF = "tests/verification/simulation/test_half_machine.py::test_machine_detects_a"
_TIMES = (
    "tests/robustness/test_due_times.py::test_due_times_detect_a_service_that_accepts_all_of_them"
)
_STATUS = (
    "tests/integration/store/test_status_of_any_rows.py"
    "::test_rows_detect_a_status_that_hides_dead_rollbacks"
)
_DOWNGRADES = (
    "tests/migrations/test_schema_rows_there_and_back.py"
    "::test_rows_detect_a_downgrade_that_loses_half_messages"
)
_CHECKS = "tests/integration/half_messages/test_check_isolation.py"


@dataclass(frozen=True, slots=True)
class Catch:
    """A harness, and the name of the defect in it: a mutant or a test."""

    harness: Harness
    name: str

    def __str__(self) -> str:
        """Name the harness and the mutant; a property test by its file."""
        if self.harness is Harness.PROPERTY:
            file, _, _ = self.name.partition("::")
            return f"{self.harness} `{file.rpartition('/')[2]}`"
        return f"{self.harness} `{self.name}`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Defect:
    """A defect that shieldtx had."""

    id: str
    what: str
    caught: tuple[Catch, ...] = ()
    own_test: str = ""
    """The test that finds the defect where no general harness does."""


def _faults(*names: str) -> tuple[Catch, ...]:
    return tuple(Catch(Harness.FAULTS, name) for name in names)


def _simulated(*names: str) -> tuple[Catch, ...]:
    return tuple(Catch(Harness.SIMULATION, name) for name in names)


def _model(*names: str) -> tuple[Catch, ...]:
    return tuple(Catch(Harness.MODEL, name) for name in names)


def _property(*tests: str) -> tuple[Catch, ...]:
    return tuple(Catch(Harness.PROPERTY, test) for test in tests)


DEFECTS = (
    Defect(
        id="C1",
        what="a compensation runs before its event, whose effect then stays",
        caught=_model("COMPENSATES_UNFINISHED") + _property(_RACE),
    ),
    Defect(
        id="C2",
        what="an error while decoding loses the whole batch",
        caught=_simulated("undecoded-batch-is-forgotten") + _faults("M38"),
    ),
    Defect(
        id="C3",
        what="writers use another number of shards than the tables: events are never sent",
        caught=_simulated("writes-by-its-own-number", "writes-by-a-smaller-number"),
    ),
    Defect(
        id="C4",
        what="rows without a handler block every retry of their group",
        caught=_faults("M39"),
    ),
    Defect(
        id="C5",
        what="a half message is sent although its local transaction silently rolled back",
        caught=_property(f"{_HALF}_commit_accepted_without_its_barrier") + _faults("M36"),
    ),
    Defect(
        id="C6",
        what="the purge deletes the event of a DEAD rollback, whose replay can never succeed",
        caught=_simulated("purges-under-a-rollback") + _faults("M40"),
    ),
    Defect(
        id="C7",
        what="events added at the start of a two-phase commit are lost",
        caught=_property(f"{_CALLERS}[leaves_late_events_out_of_prepared_transactions]")
        + _faults("M47"),
    ),
    Defect(
        id="C8",
        what="records of aborted Kafka transactions are applied",
        caught=_faults("M37"),
    ),
    Defect(
        id="C9",
        what="a handler that commits and then raises settles its event with half an effect",
        caught=_faults("M48"),
    ),
    Defect(
        id="C10",
        what="contents of rows appear in logs, in errors and on the rollback topic",
        caught=_faults("M52"),
    ),
    Defect(
        id="C11",
        what="a poll of large records makes a statement that the server always refuses",
        caught=_faults("M50", "M51"),
    ),
    Defect(
        id="C12",
        what="a relay claims rows whatever their size",
        caught=_faults("M49"),
    ),
    Defect(
        id="C13",
        what="rollbacks after a purge or a change of the source have no effect and no error",
        caught=_faults("M41", "M61"),
    ),
    Defect(
        id="C14",
        what="an old release fails an event of a new type without its local rollback",
        caught=_simulated("old-release-fails-new-events"),
    ),
    Defect(
        id="C15",
        what="the watchdog ends a process within the lease of its handler, at each attempt",
        caught=_faults("M55"),
    ),
    Defect(
        id="C16",
        what="an upgrade of the tables waits for a reader, and blocks all writers meanwhile",
        caught=_faults("M56"),
    ),
    Defect(
        id="C17",
        what="statements are prepared through a pooler",
        caught=_faults("M54"),
    ),
    Defect(
        id="C18",
        what="a session with two databases publishes events of rolled-back transactions",
        caught=_property(f"{_CALLERS}[commits_one_database_after_the_other]"),
    ),
    Defect(
        id="C19",
        what="an operator's rollback of a half message lets the local transaction commit later",
        caught=_property(f"{_HALF}_decision_that_leaves_the_barrier_open"),
    ),
    Defect(
        id="C20",
        what="bad records of a recreated topic are not parked",
        caught=_faults("M57"),
    ),
    Defect(
        id="C21",
        what="workers use the server's default isolation level",
        caught=_faults("M43"),
    ),
    Defect(
        id="C22",
        what="a publishing function with several sessions uses the first one",
        caught=_property(_PUBLISHERS),
    ),
    Defect(
        id="C23",
        what="sequences that restart after a switch-over reverse the order of a key",
        caught=_faults("M53"),
    ),
    Defect(
        id="C24",
        what="an event added to an asynchronous session after its end is lost",
        caught=_property(f"{_CALLERS}[takes_events_when_the_transaction_has_ended]"),
    ),
    Defect(
        id="S1",
        what="a refused topic stops all other keys",
        caught=_faults("M58"),
    ),
    Defect(
        id="S2",
        what="a due time at the end of the calendar blocks the relay",
        caught=_property(_TIMES),
    ),
    Defect(
        id="S3",
        what="workers keep connections to a server that has become read-only",
        caught=_faults("M34"),
    ),
    Defect(
        id="S4",
        what="SystemExit during a pass loses the claim, and the order of its keys",
        caught=_simulated("interrupted-batch-is-forgotten") + _faults("M26"),
    ),
    Defect(
        id="S5",
        what="forked processes share connections",
        caught=_faults("M42"),
    ),
    Defect(
        id="S6",
        what="refused events hide DEAD rollbacks in the status",
        caught=_property(_STATUS),
    ),
    Defect(
        id="S7",
        what="a downgrade and upgrade of the tables loses half messages",
        caught=_property(_DOWNGRADES),
    ),
    Defect(
        id="S8",
        what="check-backs take all connections of a relay",
        own_test=f"{_CHECKS}::test_checks_that_wait_leave_the_relays_connections_alone",
    ),
    Defect(
        id="S9",
        what="each checked event type costs a thread and a transaction a second",
        own_test=f"{_CHECKS}::test_idle_relay_polls_once_for_all_event_types",
    ),
    Defect(
        id="S10",
        what="a worker that is the first process of a container ignores an early SIGTERM",
        own_test="tests/acceptance/test_worker_life.py"
        "::test_signal_ends_the_first_process_of_a_container_at_start",
    ),
    Defect(
        id="S11",
        what="SIGHUP ends a worker at once, before it releases its leases",
        caught=_faults("M60"),
    ),
    Defect(
        id="S12",
        what="each failed connection to Kafka leaves descriptors open",
        caught=_faults("M59"),
    ),
)


def names_of(harness: Harness) -> Iterator[str]:
    """Yield the names of the defects that a harness has to find."""
    for defect in DEFECTS:
        for catch in defect.caught:
            if catch.harness is harness:
                yield catch.name


def as_markdown() -> str:
    """Return the table of docs/explanation/proof.md."""
    lines = ["| defect | found by |", "|---|---|"]
    for defect in DEFECTS:
        found_by = "; ".join(map(str, defect.caught))
        if not found_by:
            file, _, _ = defect.own_test.partition("::")
            found_by = f"only its own test: `{file.rpartition('/')[2]}`"
        lines.append(f"| {defect.id} {defect.what} | {found_by} |")
    return "\n".join(lines)
