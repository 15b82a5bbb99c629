"""Cases: what a caller does with a transaction, from the driver to the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product

from hypothesis import strategies as st


class Driver(StrEnum):
    PSYCOPG = "psycopg"
    PSYCOPG_ASYNC = "psycopg_async"
    PSYCOPG2 = "psycopg2"
    PG8000 = "pg8000"
    ASYNCPG = "asyncpg"

    @property
    def is_async(self) -> bool:
        return self in {Driver.PSYCOPG_ASYNC, Driver.ASYNCPG}


class Isolation(StrEnum):
    READ_COMMITTED = "READ COMMITTED"
    REPEATABLE_READ = "REPEATABLE READ"
    SERIALIZABLE = "SERIALIZABLE"
    AUTOCOMMIT = "AUTOCOMMIT"


class Given(StrEnum):
    """Where the caller names the isolation level."""

    ENGINE = "argument of the engine"
    ENGINE_OPTION = "execution option of the engine"
    CONNECTION_OPTION = "execution option of the connection"


class Mode(StrEnum):
    PLAIN = "Session"
    SCOPED = "scoped session"
    TWO_PHASE = "two-phase Session"
    BINDS = "Session with two databases"
    TWO_PHASE_BINDS = "two-phase Session with two databases"
    CONDITIONAL_SAVEPOINT = "conditional_savepoint"
    CREATE_SAVEPOINT = "create_savepoint"
    CONTROL_FULLY = "control_fully"
    ROLLBACK_ONLY = "rollback_only"
    BARE = "Connection"

    @property
    def is_two_phase(self) -> bool:
        return self in {Mode.TWO_PHASE, Mode.TWO_PHASE_BINDS}

    @property
    def has_two_databases(self) -> bool:
        return self in {Mode.BINDS, Mode.TWO_PHASE_BINDS}

    @property
    def is_shared(self) -> bool:
        """Whether the session is made on a Connection of the caller, by join_transaction_mode."""
        return self in {
            Mode.CONDITIONAL_SAVEPOINT,
            Mode.CREATE_SAVEPOINT,
            Mode.CONTROL_FULLY,
            Mode.ROLLBACK_ONLY,
        }


class Joined(StrEnum):
    """The state of the connection that a shared session joins."""

    IDLE = "no transaction"
    BEGUN = "a transaction"
    SAVEPOINT = "a savepoint"


class Owner(StrEnum):
    """What the owner of a shared connection does after the end of the session."""

    COMMITS = "commits"
    ROLLS_BACK = "rolls back"
    COMMITS_ALONE = "commits instead of the session"


class Step(StrEnum):
    ROW_EVENT = "statement, add"
    EVENT_ROW = "add, statement"
    OBJECT_EVENT = "object, add"
    EVENT_OBJECT = "add, object"
    BEFORE_FLUSH = "object, add in before_flush"
    AFTER_FLUSH = "object, add in after_flush"
    AFTER_FLUSH_POSTEXEC = "object, add in after_flush_postexec"
    BEFORE_COMMIT_FIRST = "object and add in before_commit, before shieldtx"
    BEFORE_COMMIT_LAST = "object and add in before_commit, after shieldtx"
    ROW_BEFORE_COMMIT_LAST = "statement and add in before_commit, after shieldtx"
    AFTER_COMMIT = "statement, add in after_commit"
    AFTER_ROLLBACK = "statement, add in after_rollback"
    AFTER_SOFT_ROLLBACK = "statement and add in after_soft_rollback"
    BEGIN = "begin a savepoint"
    RELEASE = "release the savepoint"
    UNDO = "roll the savepoint back"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    READ = "read"
    FLUSH = "flush"
    CANCEL = "cancel another event"
    PREPARE = "statement, prepare, add"
    FAIL_IN_SAVEPOINT = "statement, add, failed statement in a savepoint"
    SWALLOW = "failed statement, swallowed"
    SWALLOW_FLUSH = "failed flush, swallowed"
    DRIVER_ROLLBACK = "rollback of the driver's connection"
    DRIVER_COMMIT = "commit of the driver's connection"
    UNDONE_BY_HAND = "statement, add in a savepoint of a statement, rolled back"
    UNDONE_IN_BLOCK = "statement, add in a block of the driver's that fails"
    FAILED_IN_BLOCK = "statement, failed statement, add in a block of the driver's that fails"
    WRITTEN_IN_BLOCK = "cancel another event in a block of the driver's that fails"


class End(StrEnum):
    COMMIT = "commit"
    ROLLBACK = "rollback"
    EXCEPTION = "exception"
    SWALLOWED = "failed statement swallowed, commit"
    FAILED_COMMIT = "commit, which a deferred constraint refuses"
    CUT = "connection cut, commit"
    CUT_OTHER = "connection to the other database cut, commit"
    UNDONE = "savepoint rolled back, commit"
    ADD_AFTER = "commit, then statement and add, then close"


PLACES: dict[str, tuple[Step, ...]] = {
    "before the first statement": (Step.EVENT_ROW,),
    "after the first statement": (Step.READ, Step.ROW_EVENT),
    "before an object": (Step.EVENT_OBJECT, Step.READ),
    "after an object": (Step.OBJECT_EVENT,),
    "in before_flush": (Step.BEFORE_FLUSH,),
    "in after_flush": (Step.AFTER_FLUSH, Step.EVENT_ROW),
    "in after_flush_postexec": (Step.AFTER_FLUSH_POSTEXEC,),
    "in before_commit, first": (Step.BEFORE_COMMIT_FIRST,),
    "in before_commit, last": (Step.BEFORE_COMMIT_LAST,),
    "in before_commit, last, by statement": (Step.ROW_BEFORE_COMMIT_LAST,),
    "in after_commit": (Step.OBJECT_EVENT, Step.AFTER_COMMIT),
    "in after_rollback": (Step.ROW_EVENT, Step.AFTER_ROLLBACK),
    "in after_soft_rollback": (Step.AFTER_SOFT_ROLLBACK, Step.FAIL_IN_SAVEPOINT),
    "in a savepoint": (Step.OBJECT_EVENT, Step.BEGIN, Step.EVENT_ROW, Step.RELEASE),
    "in a savepoint left open": (Step.ROW_EVENT, Step.BEGIN, Step.OBJECT_EVENT),
    "before a savepoint rolled back": (Step.EVENT_ROW, Step.BEGIN, Step.ROW_EVENT, Step.UNDO),
    "in a savepoint that fails": (Step.OBJECT_EVENT, Step.FAIL_IN_SAVEPOINT),
    "after a commit in the middle": (Step.OBJECT_EVENT, Step.COMMIT, Step.EVENT_ROW),
    "after a rollback in the middle": (Step.EVENT_ROW, Step.ROLLBACK, Step.OBJECT_EVENT),
    "after prepare": (Step.ROW_EVENT, Step.PREPARE),
    "before a savepoint that writes it": (Step.EVENT_ROW, Step.BEGIN, Step.CANCEL, Step.UNDO),
    "before a rollback of the driver": (Step.ROW_EVENT, Step.DRIVER_ROLLBACK),
    "first, before a rollback of the driver": (Step.EVENT_ROW, Step.DRIVER_ROLLBACK, Step.READ),
    "in a savepoint by hand": (Step.READ, Step.UNDONE_BY_HAND),
    "after another, in a savepoint by hand": (Step.OBJECT_EVENT, Step.UNDONE_BY_HAND),
    "in a block of the driver": (Step.ROW_EVENT, Step.UNDONE_IN_BLOCK),
    "in a block of the driver that has failed": (Step.READ, Step.FAILED_IN_BLOCK),
    "after a commit of the driver": (Step.ROW_EVENT, Step.DRIVER_COMMIT, Step.EVENT_ROW),
    "before a block that writes it": (Step.EVENT_ROW, Step.WRITTEN_IN_BLOCK),
    "after a failed flush": (Step.EVENT_ROW, Step.SWALLOW_FLUSH, Step.EVENT_OBJECT),
}
"""The places where a caller calls `add`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    driver: Driver
    isolation: Isolation
    given: Given
    mode: Mode
    steps: tuple[Step, ...]
    end: End
    joined: Joined = Joined.BEGUN
    owner: Owner = Owner.COMMITS
    by_run_sync: bool = False
    """Whether an asynchronous caller adds events inside run_sync."""

    def __str__(self) -> str:
        mode = str(self.mode)
        if self.mode.is_shared:
            mode = f"Session on a Connection with {self.joined}, {mode}, whose owner {self.owner}"
        if self.by_run_sync and self.driver.is_async:
            mode += ", by run_sync"
        steps = "; ".join(self.steps)
        level = f"{self.isolation} as {self.given}"
        return f"{self.driver}, {level}, {mode}: {steps}; end: {self.end}"


def every_end(driver: Driver, mode: Mode) -> Iterator[Case]:
    """Yield a case for each pair of isolation level and end; the other choices alternate."""
    return _cases(driver, mode, product(Isolation, [()], End))


def every_place(driver: Driver, mode: Mode) -> Iterator[Case]:
    """Yield a case for each place of `add`, each with a commit; the other choices alternate."""
    return _cases(driver, mode, product([None], PLACES.values(), [End.COMMIT]))


def every_owner(driver: Driver, mode: Mode) -> Iterator[Case]:
    """Yield a case for each session end and each state of a connection whose owner commits."""
    if not mode.is_shared:
        return
    steps = [(Step.OBJECT_EVENT,), (Step.EVENT_ROW,)]
    ends = [End.COMMIT, End.ROLLBACK, End.EXCEPTION]
    for joined, case in product(Joined, _cases(driver, mode, product([None], steps, ends))):
        yield replace(case, joined=joined, owner=Owner.COMMITS)


def _cases(
    driver: Driver,
    mode: Mode,
    chosen: Iterable[tuple[Isolation | None, tuple[Step, ...], End]],
) -> Iterator[Case]:
    others = list(product(Joined, Owner, [False, True], Given))
    places = list(PLACES.values())
    # Each driver and mode begins elsewhere, so that together they meet more combinations.
    beginning = 7 * list(Driver).index(driver) + 11 * list(Mode).index(mode)
    for turn, (isolation, steps, end) in enumerate(chosen, beginning):
        # A step coprime to the number of combinations meets each of them.
        joined, owner, by_run_sync, given = others[turn * 31 % len(others)]
        yield Case(
            driver=driver,
            # Most cases in AUTOCOMMIT are refused at once, so only the cases of the ends use it.
            isolation=isolation or list(Isolation)[turn % 3],
            given=given,
            mode=mode,
            steps=steps or places[turn % len(places)],
            end=end,
            joined=joined,
            owner=owner,
            by_run_sync=by_run_sync,
        )


CASES = st.builds(
    Case,
    driver=st.sampled_from(Driver),
    # AUTOCOMMIT ends most cases at their first event.
    isolation=st.sampled_from([*list(Isolation)[:3] * 3, Isolation.AUTOCOMMIT]),
    given=st.sampled_from(Given),
    mode=st.sampled_from(Mode),
    steps=st.lists(st.sampled_from(Step), min_size=1, max_size=6).map(tuple),
    end=st.sampled_from(End),
    joined=st.sampled_from(Joined),
    owner=st.sampled_from(Owner),
    by_run_sync=st.booleans(),
)
