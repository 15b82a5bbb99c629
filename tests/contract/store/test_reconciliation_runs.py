"""The stored runs of the reconciliation: one at a time, and the start of the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from shieldtx.errors import AlreadyRunning, ConfigurationError, LeaseLost
from shieldtx.store import reconciliation_runs
from shieldtx.store.reconciliation_runs import ABANDONED, KEPT, SqlReconciliationRuns
from tests.contract.conftest import Stores

LEASE = timedelta(minutes=1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MARKS = {"orders": NOON, "stock": NOON - timedelta(minutes=1)}


@pytest.fixture
def runs(stores: Stores) -> SqlReconciliationRuns:
    return SqlReconciliationRuns(stores.engine, stores.tables, scope="nightly")


def last_good(runs: SqlReconciliationRuns) -> Mapping[str, datetime] | None:
    return next((run.watermarks for run in runs.good()), None)


def begin(runs: SqlReconciliationRuns, run_id: str) -> None:
    runs.begin(run_id, mode="full", who="ann@desk", folder=f"/runs/{run_id}", lease=LEASE)


def run_through(runs: SqlReconciliationRuns, run_id: str, **ending) -> None:
    begin(runs, run_id)
    runs.finish(run_id, **({"outcome": "CLEAN"} | ending))


def age(stores: Stores, **ago: timedelta) -> None:
    """Set times of all runs back, by the database's clock as closely as the test can."""
    table = stores.tables.reconcile_run
    moments = {name: datetime.now(UTC) - by for name, by in ago.items()}
    with stores.engine.begin() as connection:
        connection.execute(update(table).values(**moments))


def test_run_is_found_while_it_runs_and_after_its_end(runs: SqlReconciliationRuns):
    begin(runs, "one")

    at_work = runs.find("one")
    assert at_work is not None
    assert (at_work.outcome, at_work.dead, at_work.good) == (None, False, False)
    assert (at_work.mode, at_work.who, at_work.folder) == ("full", "ann@desk", "/runs/one")
    assert not runs.ended()
    running = runs.running()
    assert running is not None
    assert running.run_id == "one"

    runs.finish("one", outcome="CLEAN", good=True, watermarks=MARKS, totals={"MATCHED": 7})

    (ended,) = runs.ended()
    assert runs.running() is None
    assert (ended.run_id, ended.outcome, ended.good) == ("one", "CLEAN", True)
    assert (ended.watermarks, ended.totals) == (MARKS, {"MATCHED": 7})
    assert ended.started_at <= ended.finished_at <= ended.at
    assert runs.find("another") is None


def test_a_second_run_gets_the_owner_and_start_of_the_first(runs: SqlReconciliationRuns):
    begin(runs, "one")

    with pytest.raises(AlreadyRunning, match=r"run one .* ann@desk started it at \d{4}-"):
        begin(runs, "two")

    assert [run.run_id for run in runs.latest(limit=9)] == ["one"]
    runs.finish("one", outcome="CLEAN")
    begin(runs, "two")


def test_run_of_a_fast_clock_is_the_latest_for_one_night_at_most(
    stores: Stores, runs: SqlReconciliationRuns
):
    run_through(runs, "01-ahead", good=True, watermarks=MARKS)
    age(stores, started_at=-timedelta(days=200), finished_at=-timedelta(days=200))

    run_through(runs, "02-next")
    run_through(runs, "03-last")

    latest = runs.latest(limit=3)
    assert [run.run_id for run in latest] == ["03-last", "02-next", "01-ahead"]
    assert all(run.started_at <= run.at for run in latest)
    assert all(run.finished_at is not None and run.finished_at <= run.at for run in latest)


def test_dead_run_of_a_fast_clock_blocks_for_one_lease(stores: Stores, runs: SqlReconciliationRuns):
    begin(runs, "dead")
    age(stores, started_at=-timedelta(days=1), lease_until=-timedelta(days=1))

    with pytest.raises(AlreadyRunning):
        begin(runs, "two")

    table = stores.tables.reconcile_run
    with stores.engine.connect() as connection:
        until = connection.execute(select(table.c.lease_until)).scalar_one()
    assert until <= datetime.now(UTC) + LEASE


def test_two_configurations_run_concurrently_and_share_no_marks(
    stores: Stores, runs: SqlReconciliationRuns
):
    other = SqlReconciliationRuns(stores.engine, stores.tables, scope="hourly")
    begin(runs, "one")
    run_through(other, "two", good=True, watermarks=MARKS)

    assert last_good(other) == MARKS
    assert last_good(runs) is None
    assert runs.find("two") is None
    assert [run.run_id for run in other.latest(limit=9)] == ["two"]


def test_run_keeps_its_basis(runs: SqlReconciliationRuns):
    runs.begin("one", mode="full", who="ann@desk", basis='{"margin": "PT5M"}')
    runs.finish("one", outcome="CLEAN", good=True)
    run_through(runs, "two", good=True)

    assert [(run.run_id, run.basis) for run in runs.good()] == [
        ("two", "{}"),
        ("one", '{"margin": "PT5M"}'),
    ]


def test_an_id_is_used_once(runs: SqlReconciliationRuns):
    run_through(runs, "one")

    with pytest.raises(ConfigurationError, match="run one already"):
        begin(runs, "one")


@pytest.mark.begun_by_hand
# SQLite allows one write at a time.
@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_one_of_many_concurrent_runs_begins(stores: Stores):
    start = threading.Barrier(6)
    refused: list[str] = []

    def try_to_run(run_id: str) -> None:
        runs = SqlReconciliationRuns(stores.engine, stores.tables, scope="nightly")
        start.wait(timeout=10)
        try:
            begin(runs, run_id)
        except AlreadyRunning as error:
            refused.append(str(error))

    threads = [threading.Thread(target=try_to_run, args=[str(n)]) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    (run,) = SqlReconciliationRuns(stores.engine, stores.tables, scope="nightly").latest(limit=9)
    assert len(refused) == 5
    assert all(f"run {run.run_id} " in why for why in refused)


def test_dead_run_is_taken_over_and_its_late_end_is_ignored(
    stores: Stores, runs: SqlReconciliationRuns
):
    begin(runs, "dead")
    age(stores, lease_until=timedelta(seconds=1))
    assert [run.dead for run in runs.latest(limit=9)] == [True]

    begin(runs, "next")

    dead = runs.find("dead")
    assert dead is not None
    assert (dead.outcome, dead.good, dead.dead) == (ABANDONED, False, False)
    assert "did not renew its lease" in dead.problem
    for late in (
        lambda: runs.extend("dead"),
        lambda: runs.finish("dead", outcome="CLEAN", good=True, watermarks=MARKS),
    ):
        with pytest.raises(LeaseLost, match="run dead was given up"):
            late()
    assert last_good(runs) is None


def test_run_that_renews_its_lease_is_not_taken_over(stores: Stores, runs: SqlReconciliationRuns):
    begin(runs, "slow")
    age(stores, lease_until=timedelta(seconds=1))
    runs.extend("slow", lease=LEASE)

    with pytest.raises(AlreadyRunning):
        begin(runs, "next")


def test_lease_is_extended_in_the_background_during_the_block(
    stores: Stores, runs: SqlReconciliationRuns, eventually: Callable[..., None]
):
    begin(runs, "long")
    first = stores.tables.reconcile_run.c.lease_until

    def lease_until() -> datetime:
        with stores.engine.connect() as connection:
            return connection.scalars(first.table.select().with_only_columns(first)).one()

    before = lease_until()
    with runs.holding("long", lease=timedelta(seconds=1)) as lost:
        eventually(lambda: lease_until() != before, "the lease is extended")
    assert not lost.is_set()
    threads = {thread.name for thread in threading.enumerate()}
    assert "reconcile long" not in threads


def test_the_owner_of_a_lost_lease_is_notified(stores: Stores, runs: SqlReconciliationRuns):
    begin(runs, "frozen")
    with runs.holding("frozen", lease=timedelta(seconds=1)) as lost:
        age(stores, lease_until=timedelta(seconds=1))
        table = stores.tables.reconcile_run
        with stores.engine.begin() as connection:
            connection.execute(update(table).values(outcome=ABANDONED))
        assert lost.wait(15)


def test_next_run_starts_from_the_last_good_run(
    runs: SqlReconciliationRuns,
):
    assert last_good(runs) is None
    run_through(runs, "one", good=True, watermarks={"orders": NOON - timedelta(days=1)})
    run_through(runs, "two", good=True, watermarks=MARKS)
    run_through(runs, "three", outcome="MISMATCHES", watermarks={"orders": NOON})
    run_through(runs, "four", outcome="ERROR", problem="no Java")

    assert last_good(runs) == MARKS
    last, *_ = runs.ended()
    assert (last.run_id, last.problem) == ("four", "no Java")
    assert [run.run_id for run in runs.latest(limit=3)] == ["four", "three", "two"]


def test_old_runs_are_deleted_except_the_base_of_the_next(
    stores: Stores, runs: SqlReconciliationRuns
):
    run_through(runs, "older", good=True, watermarks={"orders": NOON - timedelta(days=1)})
    run_through(runs, "good", good=True, watermarks=MARKS)
    run_through(runs, "bad", outcome="ERROR")
    table = stores.tables.reconcile_run
    for days, run_id in ((3, "older"), (2, "good"), (1, "bad")):
        with stores.engine.begin() as connection:
            long_ago = datetime.now(UTC) - KEPT - timedelta(days=days)
            connection.execute(
                update(table).where(table.c.run_id == run_id).values(started_at=long_ago)
            )

    begin(runs, "now")

    assert {run.run_id for run in runs.latest(limit=9)} == {"good", "now"}
    assert last_good(runs) == MARKS


def test_latest_good_run_of_each_configuration_is_kept(stores: Stores, runs: SqlReconciliationRuns):
    for day, (run_id, basis) in enumerate(
        [("a1", "a 1"), ("b1", "b 1"), ("a2", "a 2"), ("b2", "b 2"), ("a3", "a 3"), ("a4", "a 4")]
    ):
        runs.begin(run_id, mode="full", who="ann@desk", basis=basis, lease=LEASE)
        runs.finish(run_id, outcome="CLEAN", good=True)
        table = stores.tables.reconcile_run
        with stores.engine.begin() as connection:
            long_ago = datetime.now(UTC) - KEPT - timedelta(days=9 - day)
            connection.execute(
                update(table).where(table.c.run_id == run_id).values(started_at=long_ago)
            )

    runs.begin("now", mode="full", who="ann@desk", lease=LEASE, alike=lambda basis: basis[0])

    assert {run.run_id for run in runs.good()} == {"a4", "b2"}


def test_good_runs_are_found_in_any_number(
    stores: Stores, runs: SqlReconciliationRuns, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reconciliation_runs, "LOOKED_BACK", 2)
    for run_id in ("one", "two", "three", "four", "five"):
        run_through(runs, run_id, good=True)

    assert [run.run_id for run in runs.good()] == ["five", "four", "three", "two", "one"]


def test_ended_runs_are_found_in_any_number(
    runs: SqlReconciliationRuns, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reconciliation_runs, "LOOKED_BACK", 2)
    run_through(runs, "one", good=True)
    for run_id in ("two", "three", "four"):
        run_through(runs, run_id, outcome="ERROR")
    begin(runs, "five")

    assert [run.run_id for run in runs.all_ended()] == ["four", "three", "two", "one"]
    assert [run.run_id for run in runs.ended()] == ["four", "three"]


def test_runs_of_other_scopes_are_found_by_how_they_ended(
    stores: Stores, runs: SqlReconciliationRuns, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reconciliation_runs, "MOST_SCOPES", 2)
    for number, scope in enumerate(("a", "b", "b", "c", "d")):
        of_scope = SqlReconciliationRuns(stores.engine, stores.tables, scope=scope)
        outcome = "ERROR" if number == 2 else "CLEAN"
        run_through(of_scope, f"run {number}", outcome=outcome)
    begin(SqlReconciliationRuns(stores.engine, stores.tables, scope="e"), "run 5")

    def found(of: SqlReconciliationRuns) -> list[list[str]]:
        return [[run.run_id for run in each.ended_as(["CLEAN"])] for each in of.of_other_scopes()]

    assert found(runs) == [["run 4"], ["run 3"]]
    d = SqlReconciliationRuns(stores.engine, stores.tables, scope="d")
    assert found(d) == [["run 3"], ["run 1"]]


def test_basis_of_a_run_may_be_stored_until_its_end(runs: SqlReconciliationRuns):
    begin(runs, "one")
    runs.judge("one", mode="INCREMENTAL", basis='{"margin": "PT5M"}')

    found = runs.find("one")
    assert found is not None
    assert (found.mode, found.basis) == ("INCREMENTAL", '{"margin": "PT5M"}')
    runs.finish("one", outcome="CLEAN")
    with pytest.raises(LeaseLost):
        runs.judge("one", mode="FULL", basis="{}")
