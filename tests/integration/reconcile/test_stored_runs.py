"""How a run is stored, with any outcome; Spark takes no part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete, insert, make_url, text
from sqlalchemy.exc import OperationalError

from shieldtx.app.reconciliation import request_of, run_stored, stored_runs
from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.embedded.free_ports import free_port
from shieldtx.errors import SchemaMismatch
from shieldtx.reconcile import basis
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.expectations import ExpectedGroup, Received
from shieldtx.reconcile.findings import Bounds, Findings, OutputFolder, RunOutcome
from shieldtx.reconcile.observed import Observed, ObservedTopics
from shieldtx.reconcile.request import EVERYTHING, ReconcileRequest, Selection, ServiceDatabase
from shieldtx.reconcile.spark_launcher import ReconcileResult
from shieldtx.reconcile.window import Window
from shieldtx.store import reconciliation_runs
from shieldtx.store.reconciliation_runs import StoredRun
from shieldtx.store.tables import tables
from tests.spark.planting import inbox_row
from tests.support.migrated_databases import MigratedDatabases

RECEIVED = Received(
    downstream="stock",
    group="reserve",
    source="orders",
    kind=TxKind.COMMIT,
    topic="orders.placed",
    event_type="orders.placed",
)
OBSERVED = Observed(received=(RECEIVED,), topics=ObservedTopics(cluster="c"))
Job = Callable[[ReconcileRequest, Callable[[], bool]], ReconcileResult]


@pytest.fixture
def services(databases: MigratedDatabases) -> Iterator[tuple[ServiceDatabase, ServiceDatabase]]:
    with databases.database(4, None) as orders, databases.database(4, None) as stock:
        yield ServiceDatabase(name="orders", url=orders), ServiceDatabase(name="stock", url=stock)


def configuration(*services: ServiceDatabase, **changed: Any) -> Configuration:
    return Configuration(scope="nightly", services=services, **changed)


def run(of: Configuration, job: Job, folder: Path, **given: Any) -> ReconcileResult:
    selection = given.get("selection")
    return run_stored(of, request_of(of, folder), selection, who="ann@desk", job=job)


def good(request: ReconcileRequest, _: Callable[[], bool]) -> ReconcileResult:
    return ending(request)


def ending(request: ReconcileRequest, **changed: Any) -> ReconcileResult:
    now = changed.get("started_at") or datetime.now(UTC)
    findings = Findings(
        started_at=now,
        seconds=1,
        margin=request.margin,
        bounds=(
            Bounds(
                kind=TxKind.COMMIT,
                upstream="orders",
                downstream="stock",
                window=Window(watermark=now),
            ),
        ),
        counts=(),
        first_rows=(),
        selection=request.selection,
        observed=OBSERVED,
    )
    return ReconcileResult(
        outcome=RunOutcome.CLEAN,
        findings=replace(findings, **changed),
        problem="",
        folder=OutputFolder(path=request.folder),
    )


def never(_: ReconcileRequest, __: Callable[[], bool]) -> ReconcileResult:
    pytest.fail("the job began")


def only_run(of: Configuration) -> StoredRun:
    with stored_runs(of) as runs:
        (stored,) = runs.latest(limit=9)
    return stored


def test_a_database_that_cannot_be_reached_ends_a_stored_run(services, tmp_path: Path) -> None:
    orders, stock = services
    port = free_port()
    away = make_url(stock.url).set(host="127.0.0.1", port=port)
    of = configuration(orders, replace(stock, url=away.render_as_string(hide_password=False)))

    with pytest.raises(OperationalError):
        run(of, never, tmp_path)

    stored = only_run(of)
    assert (stored.outcome, stored.good, stored.mode) == ("ERROR", False, "INCREMENTAL")
    assert "in the database of service stock" in stored.problem


def test_locked_database_ends_a_run_within_its_time_limit(services, tmp_path: Path) -> None:
    of = configuration(*services, statement_timeout=timedelta(seconds=1))
    engine: Engine = create_engine(services[1].url)
    with engine.connect() as connection:
        connection.execute(text("LOCK TABLE shield_inbox IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(OperationalError, match="statement timeout"):
            run(of, never, tmp_path)
    engine.dispose()

    stored = only_run(of)
    assert stored.outcome == "ERROR"
    assert "in the database of service stock" in stored.problem


def test_tables_of_another_version_end_a_stored_run(services, tmp_path: Path) -> None:
    of = configuration(*services)
    engine = create_engine(services[1].url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE shield_version SET version_num = '0001'"))
    engine.dispose()

    with pytest.raises(SchemaMismatch, match="service stock"):
        run(of, never, tmp_path)

    assert only_run(of).outcome == "ERROR"


def test_good_run_is_stored_with_its_observations(services, tmp_path: Path) -> None:
    of = configuration(*services)

    run(of, good, tmp_path)

    stored = only_run(of)
    judged = basis.from_json(stored.basis)
    assert judged is not None
    assert judged.observed == OBSERVED
    assert all(service.history for service in judged.services.values())
    assert (stored.mode, stored.good) == ("FULL", True)


def test_next_run_receives_the_observations_of_the_last_good_run(services, tmp_path: Path) -> None:
    of, asked = configuration(*services), []

    def job(request: ReconcileRequest, _: Callable[[], bool]) -> ReconcileResult:
        asked.append(request)
        return ending(request)

    for _ in range(2):
        run(of, job, tmp_path)

    assert [request.observed for request in asked] == [None, OBSERVED]
    assert [request.selection.is_everything for request in asked] == [True, False]


def test_run_that_read_everything_is_stored_as_full(services, tmp_path: Path) -> None:
    of = configuration(*services)
    run(of, good, tmp_path)

    run(of, lambda request, _: ending(request, selection=EVERYTHING), tmp_path)

    with stored_runs(of) as runs:
        assert [stored.mode for stored in runs.latest(limit=9)] == ["FULL", "FULL"]


def test_run_receives_the_watermarks_of_the_earlier_runs(services, tmp_path: Path) -> None:
    """A run that is not good also judges; a run of a window leaves most events out."""
    of, asked = configuration(*services), []

    def job(request: ReconcileRequest, _: Callable[[], bool]) -> ReconcileResult:
        asked.append(request)
        return ending(request, **changes[len(asked) - 1])

    changes: list[dict[str, Any]] = [{}, {"obstacles": ("blind",)}, {}, {"bounds": ()}, {}]
    window = Selection(written_until=datetime.now(UTC))
    for selection in (None, None, window, None, None):
        run(of, job, tmp_path, selection=selection)

    with stored_runs(of) as runs:
        latest, idle, _, blind, _ = runs.latest(limit=9)
    assert asked[0].judged_until == ()
    assert until(asked[2]) == blind.watermarks["orders"]
    # A good run that met no event has judged everything up to then.
    assert until(asked[4]) == idle.started_at - of.margin
    assert latest.good


def until(request: ReconcileRequest) -> datetime | None:
    """Return the time up to which earlier runs have judged the events between orders and stock."""
    known = {each.services: each.until for each in request.judged_until}
    return known.get(("orders", "stock"))


def test_runs_of_an_unjudgeable_stream_report_why_they_are_full(services, tmp_path: Path) -> None:
    of, told = configuration(*services), []

    def job(request: ReconcileRequest, _: Callable[[], bool]) -> ReconcileResult:
        ended = ending(request, bounds=(blind,), full_because=request.full_because)
        told.append(ended.findings)
        return ended

    blind = Bounds(
        kind=TxKind.COMMIT,
        upstream="orders",
        downstream="stock",
        window=Window(obstacle="the clocks are too far apart"),
    )
    for _ in range(3):
        run(of, job, tmp_path)

    assert {each.full_because for each in told} == {("no earlier run was good",)}
    assert {each.problems for each in told} == {("the clocks are too far apart",)}
    with stored_runs(of) as runs:
        assert all(not stored.watermarks for stored in runs.latest(limit=9))


def test_any_number_of_failed_runs_hides_no_earlier_one(
    services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation_runs, "LOOKED_BACK", 2)
    of, asked = configuration(*services), []

    def failing(*_: Any) -> ReconcileResult:
        raise RuntimeError("password authentication failed")

    def job(request: ReconcileRequest, _: Callable[[], bool]) -> ReconcileResult:
        asked.append(request)
        return ending(request)

    run(of, good, tmp_path)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            run(of, failing, tmp_path)
    run(of, job, tmp_path)

    with stored_runs(of) as runs:
        *_, first = runs.latest(limit=9)
    assert until(asked[0]) == first.watermarks["orders"]


def test_watermark_in_the_future_is_ignored(services, tmp_path: Path) -> None:
    """The clock of a database was ahead in the night of the last good run, and was corrected."""
    of, asked = configuration(*services), []

    def job(request: ReconcileRequest, _: Callable[[], bool]) -> ReconcileResult:
        asked.append(request)
        return ending(request, started_at=datetime.now(UTC) + ahead[len(asked) - 1])

    # The clock of this machine was ahead by the same amount.
    ahead = [timedelta(hours=2), timedelta(0), timedelta(0)]
    for _ in ahead:
        run(of, job, tmp_path)

    _, second, third = asked
    assert second.selection.is_everything
    assert second.full_because[0].startswith(
        "the clock of the database of orders was ahead when an earlier run judged it"
    )
    assert not third.selection.is_everything
    # The time up to which the first run has judged is unknown.
    assert until(second) is None
    assert until(third) == third.selection.moved_since["orders"]


@pytest.mark.parametrize("selection", [None, EVERYTHING])
def test_next_run_receives_the_observations_of_earlier_runs(
    services: tuple[ServiceDatabase, ServiceDatabase], tmp_path: Path, selection: Selection | None
) -> None:
    asked: list[ReconcileRequest] = []

    def job(request: ReconcileRequest, given_up: Callable[[], bool]) -> ReconcileResult:
        asked.append(request)
        return good(request, given_up)

    def breaking_off(*_: object) -> ReconcileResult:
        raise OSError("no room")

    orders, stock = services
    run(configuration(*services), good, tmp_path)
    with pytest.raises(OSError, match="no room"):
        run(configuration(*services), breaking_off, tmp_path)
    # The latest completed run decides, whatever was changed since.
    changed = replace(stock, retention=timedelta(days=1))
    run(configuration(orders, changed), job, tmp_path, selection=selection)
    # Another file has other tables.
    run(configuration(stock, replace(orders, name="mail")), job, tmp_path, selection=selection)

    assert [each.past.received for each in asked] == [(RECEIVED,), ()]


def test_restored_database_counts_once_as_not_judged(
    services: tuple[ServiceDatabase, ServiceDatabase], tmp_path: Path
) -> None:
    of, asked = configuration(*services), []
    inbox = tables().inbox
    engine = create_engine(services[1].url)
    row = inbox_row(
        "orders",
        new_event_id(),
        InboxStatus.PROCESSED,
        group="reserve",
        now=datetime.now(UTC),
        age=60,
    )
    with engine.begin() as connection:
        connection.execute(insert(inbox), [row])
    run(of, noting(asked), tmp_path)
    run(of, noting(asked), tmp_path)
    with engine.begin() as connection:
        connection.execute(delete(inbox))
    engine.dispose()
    run(of, noting(asked), tmp_path)
    run(of, noting(asked), tmp_path)

    _, before, restored, after = (
        {each.services: (each.restored, each.until is None) for each in request.judged_until}
        for request in asked
    )
    assert before[("orders", "stock")] == after[("orders", "stock")] == ((), False)
    assert restored == {
        ("orders", "orders"): ((), False),
        ("orders", "stock"): (("stock",), True),
        ("stock", "stock"): (("stock",), True),
    }


@pytest.mark.parametrize("selection", [None, EVERYTHING], ids=["a further night", "full"])
def test_run_stores_which_inboxes_may_lack_rows(
    services: tuple[ServiceDatabase, ServiceDatabase], tmp_path: Path, selection: Selection | None
) -> None:
    of = configuration(*services)
    engine = create_engine(services[1].url)
    event_id, now = new_event_id(), datetime.now(UTC)
    row = inbox_row("orders", event_id, InboxStatus.PROCESSED, group="g", now=now, age=60)
    with engine.begin() as connection:
        connection.execute(insert(tables().inbox), [row])
    run(of, good, tmp_path, selection=selection)
    with engine.begin() as connection:
        connection.execute(delete(tables().inbox))
    began = datetime.now(UTC)
    engine.dispose()
    for each in (of, of, renamed(*services), of):
        run(each, good, tmp_path, selection=selection)

    with stored_runs(of) as runs, stored_runs(renamed(*services)) as others:
        own = [basis.from_json(stored.basis) for stored in runs.latest(limit=9)]
        (other,) = [basis.from_json(stored.basis) for stored in others.latest(limit=9)]
    latest, second, first, before = (each and each.incomplete_inboxes for each in own)
    # No run recorded them: the oldest row of one is an hour old, the other is empty.
    assert before is not None
    assert before["stock"] < began - timedelta(minutes=30) < began < before["orders"]
    assert first is not None
    assert first["orders"] == before["orders"]
    assert began + of.margin <= first["stock"] <= datetime.now(UTC) + of.margin
    assert first == second == latest == (other and other.incomplete_inboxes)


PAID = replace(RECEIVED, event_type="orders.paid", topic="orders.paid")


def noting(asked: list[ReconcileRequest], **changed: Any) -> Job:
    def job(request: ReconcileRequest, _: Callable[[], bool]) -> ReconcileResult:
        asked.append(request)
        return ending(request, **changed)

    return job


def test_runs_of_all_names_show_what_groups_received(
    services: tuple[ServiceDatabase, ServiceDatabase], tmp_path: Path
) -> None:
    asked: list[ReconcileRequest] = []
    paid = noting(asked, observed=Observed(received=(PAID,)))
    nothing = noting(asked, observed=Observed())
    run(configuration(*services), good, tmp_path)
    run(renamed(*services), paid, tmp_path)
    run(renamed(*services), nothing, tmp_path)
    run(configuration(*reversed(services)), nothing, tmp_path)
    run(configuration(*services), nothing, tmp_path)
    run(renamed(*reversed(services)), nothing, tmp_path)

    # A stream that a run of one name leaves out is over, unless another run has seen it.
    assert [each.past.received for each in asked] == [
        (RECEIVED,),
        (PAID, RECEIVED),
        (RECEIVED,),
        (RECEIVED,),
        (),
    ]
    assert {each.remarks for each in asked} == {()}


def renamed(*services: ServiceDatabase, **changed: Any) -> Configuration:
    return replace(configuration(*services, **changed), scope="renamed")


def test_own_name_decides_first_since_when_a_group_is_former(
    services: tuple[ServiceDatabase, ServiceDatabase], tmp_path: Path
) -> None:
    asked: list[ReconcileRequest] = []
    early, late = (datetime(2026, month, 1, tzinfo=UTC) for month in (1, 2))
    for of, since in ((configuration(*services), early), (renamed(*services), late)):
        observed = Observed(former_since={"stock": {"mail": since}})
        run(of, noting(asked, observed=observed), tmp_path)
    run(configuration(*services), noting(asked), tmp_path)
    run(configuration(*reversed(services)), noting(asked), tmp_path)

    own, other = (each.past.former_since["stock"] for each in asked[2:])
    assert own == {"mail": early}
    assert other == {"mail": late}, "the latest other name that lists the group decides"


def test_watermarks_of_runs_of_another_name_count_too(
    services: tuple[ServiceDatabase, ServiceDatabase], tmp_path: Path
) -> None:
    """A run with other filters has judged less, and a run of other databases something else."""
    orders, stock = services
    asked: list[ReconcileRequest] = []
    placed = ExpectedGroup(name="reserve", topics=("orders.placed",))
    other = replace(stock, groups=(placed,))
    run(renamed(orders, other), noting(asked), tmp_path)
    run(configuration(*services), noting(asked), tmp_path)
    run(configuration(*reversed(services)), noting(asked), tmp_path)
    run(renamed(stock, other_name(orders)), noting(asked), tmp_path)

    *_, first, second, third = map(until, asked)
    assert first is None
    assert second is not None
    assert third is None


def other_name(service: ServiceDatabase) -> ServiceDatabase:
    return replace(service, name="mail")


def test_stored_runs_that_a_role_may_not_read_cause_a_remark(
    services: tuple[ServiceDatabase, ServiceDatabase], tmp_path: Path
) -> None:
    orders, stock = services
    asked: list[ReconcileRequest] = []
    engine = create_engine(stock.url)
    with engine.begin() as connection:
        for statement in WITHOUT_STORED_RUNS:
            connection.execute(text(statement))
    engine.dispose()
    url = make_url(stock.url).set(username="reader_of_stock", password="reads")
    reader = replace(stock, url=url.render_as_string(hide_password=False))

    run(configuration(orders, reader), noting(asked), tmp_path)

    (request,) = asked
    (remark,) = request.remarks
    assert remark.startswith("the runs that are stored in the database of stock cannot be read (")
    assert "GRANT SELECT ON shield_reconcile_run" in remark


WITHOUT_STORED_RUNS = (
    "DROP ROLE IF EXISTS reader_of_stock",
    "CREATE ROLE reader_of_stock LOGIN PASSWORD 'reads'",
    "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader_of_stock",
    "REVOKE SELECT ON shield_reconcile_run FROM reader_of_stock",
)
