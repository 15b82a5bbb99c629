"""`shieldtx reconcile repair` and `shieldtx reconcile runs`, on real databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from typer.testing import CliRunner

from shieldtx.cli.program import program
from shieldtx.domain.states import TxKind
from shieldtx.reconcile import basis
from shieldtx.reconcile.expectations import Received
from shieldtx.reconcile.observed import Observed
from shieldtx.reconcile.repair.listed_rows import ListedRow
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.reconcile.verdicts import Verdict
from tests.support.repair_operator import Operator
from tests.support.repair_scenarios import Pair, listed, lose, write_parquet
from tests.support.revisions import HEAD
from tests.support.service import Service

HOUR = timedelta(hours=1)


@pytest.fixture
def operator(make_service: Callable[..., Service], tmp_path: Path) -> Operator:
    return Operator(Pair(make_service), tmp_path)


@pytest.fixture
def missing(operator: Operator) -> list[ListedRow]:
    """Three events that the group stock has not received."""
    operator.pair.write(3)
    operator.pair.work()
    operator.pair.lose_inbox_rows("stock")
    return operator.pair.missing("stock")


def test_a_run_is_repaired_by_its_id_and_again_changes_nothing(
    operator: Operator, missing: list[ListedRow]
):
    operator.ran("r1", missing)

    assert operator.answers("repair", "r1", "--yes") == {
        "run": "r1",
        "configuration": str(operator.config),
        "services": ["orders", "stock"],
        "restored": [],
        "dry_run": False,
        "repaired": [
            {
                "verdict": "MISSING_DOWNSTREAM",
                "action": "hand over",
                "done": 3,
                "needless": 0,
                "changed_since": 0,
                "out_of_order": 0,
            }
        ],
        "handed_over": [{"service": "stock", "group": "stock", "rows": 3}],
        "not_repairable": [],
    }
    (again,) = operator.answers("repair", "last", "--yes")["repaired"]
    assert (again["done"], again["needless"]) == (0, 3)
    operator.pair.work()
    assert len(operator.pair.stock.effects("stock")) == 3


def test_the_rows_are_shown_before_the_prompt(operator: Operator, missing: list[ListedRow]):
    operator.ran("r1", missing)

    no = operator.says("repair", "last", answer="n\n")
    assert no.exit_code == 3
    assert "hand over: 3 rows, MISSING_DOWNSTREAM\nto group stock of stock: 3 rows\n" in no.stderr
    assert f"Repair what run r1 has found in orders, stock ({operator.config})? [y/N]" in no.stderr
    assert "nothing was repaired" in no.stderr
    assert operator.pair.received("stock") == []

    yes = operator.says("repair", "last", "--who", "ann, ticket 7", answer="y\n")
    assert yes.exit_code == 0, yes.stderr
    assert "hand over" in yes.stdout
    ((who, *_),) = operator.pair.audits(operator.pair.stock)
    assert who == "ann, ticket 7"


@pytest.mark.parametrize("options", [["--dry-run"], ["--yes"]])
def test_table_names_the_file_and_the_repaired_services(
    operator: Operator, missing: list[ListedRow], options: list[str]
):
    operator.ran("r1", missing)

    shown = operator.says("repair", "last", *options).stdout

    assert f"configuration  {operator.config}\nservices       orders, stock\n" in shown
    assert "to group stock of stock  3 " in shown


def test_file_named_before_the_command_is_used(operator: Operator, missing: list[ListedRow]):
    operator.ran("r1", missing)
    other = operator.folder / "payments.toml"
    variables = operator.variables | {"SHIELDTX_RECONCILE_CONFIG": str(operator.config)}

    result = CliRunner().invoke(
        program, ["reconcile", "--config", str(other), "repair", "last", "--yes"], env=variables
    )

    assert result.exit_code == 3
    assert "write `shieldtx reconcile repair RUN --config ...`" in result.stderr
    assert operator.pair.received("stock") == []


def test_a_dry_run_writes_nothing_and_needs_no_prompt(operator: Operator, missing: list[ListedRow]):
    operator.ran("r1", missing)

    result = operator.says("repair", "last", "--dry-run")

    assert result.exit_code == 0, result.stderr
    assert "would be done" in result.stdout
    assert operator.pair.received("stock") == []


def test_events_out_of_order_need_their_flag_and_are_counted(operator: Operator):
    pair = operator.pair
    pair.write(6)
    pair.work()
    lost = [row["event_id"] for row in pair.sent()[:2]]
    lose(pair, "stock", *lost)
    operator.ran("r1", [row for row in pair.missing("stock") if row.event_id in lost])

    for arguments in ([], ["--verdict", "MISSING_DOWNSTREAM"]):
        data = operator.answers("repair", "last", "--yes", *arguments)
        assert [entry["done"] for entry in data["repaired"]] == []
        (left,) = data["not_repairable"]
        assert left["rows"] == 2
        assert "--out-of-order" in left["reason"]
    (tried,) = operator.answers("repair", "last", "--dry-run", "--out-of-order")["repaired"]
    assert (tried["done"], tried["out_of_order"]) == (2, 2)
    no = operator.says("repair", "last", "--out-of-order", answer="n\n")
    assert "hand over: 2 rows, MISSING_DOWNSTREAM, 2 of them after later events" in no.stderr
    (done,) = operator.answers("repair", "last", "--yes", "--out-of-order")["repaired"]

    assert (done["done"], done["out_of_order"]) == (2, 2)
    pair.work()
    assert len(pair.stock.effects("stock")) == 6


def test_unrepairable_rows_are_shown_with_number_and_reason(
    operator: Operator, missing: list[ListedRow]
):
    differing = [listed(Verdict.PAYLOAD_DIFFERS, sent=sent) for sent in operator.pair.sent()]
    operator.ran("r1", [*missing, *differing])

    data = operator.answers("repair", "last", "--yes")

    assert data["not_repairable"] == [
        {"verdict": "PAYLOAD_DIFFERS", "rows": 3, "reason": Verdict.PAYLOAD_DIFFERS.advice}
    ]
    table = operator.says("repair", "last", "--yes").stdout
    assert "not repaired: 3 PAYLOAD_DIFFERS" in table


def test_only_the_named_verdicts_are_repaired(operator: Operator, missing: list[ListedRow]):
    operator.pair.write(1)
    operator.pair.orders.execute(
        "UPDATE shield_outbox SET status = 'FAILED', settled_at = now(), last_error = 'x', "
        "unconfirmed = true WHERE status = 'INIT'"
    )
    *_, failed = operator.pair.sent()
    operator.ran("r1", [*missing, listed(Verdict.PARKED, sent=failed)])
    assert "--verdict PARKED" in operator.says("repair", "last", "--yes", "--dry-run").stdout

    (done,) = operator.answers("repair", "last", "--yes", "--verdict", "PARKED")["repaired"]

    assert (done["action"], done["done"]) == ("replay event", 1)
    assert operator.pair.orders.outbox() == {"PROCESSED": 3, "INIT": 1}


def test_rows_in_flight_are_not_repaired(operator: Operator, missing: list[ListedRow]):
    in_flight = [replace(row, verdict=Verdict.IN_FLIGHT) for row in missing]
    operator.ran("r1", in_flight)

    assert operator.answers("repair", "last") == {
        "run": "r1",
        "configuration": str(operator.config),
        "services": ["orders", "stock"],
        "restored": [],
        "dry_run": False,
        "repaired": [],
        "handed_over": [],
        "not_repairable": [],
    }


def test_rows_possibly_purged_by_the_receiver_need_an_operator(
    operator: Operator, missing: list[ListedRow]
):
    long_ago = [replace(row, published_at=datetime.now(UTC) - 9.5 * HOUR) for row in missing]
    operator.configure(stock="PT10H")
    operator.ran("r1", long_ago)

    (left,) = operator.answers("repair", "last", "--yes")["not_repairable"]
    assert left["rows"] == 3
    assert "purged" in left["reason"]

    operator.configure(orders="PT10H", stock="PT11H")
    operator.ran("r2", long_ago)
    (tried,) = operator.answers("repair", "last", "--dry-run")["repaired"]
    # The outbox has other times for these rows.
    assert (tried["done"], tried["changed_since"]) == (0, 3)


def test_recorded_purge_counts_over_the_retention_of_the_file(
    operator: Operator, missing: list[ListedRow]
):
    long_ago = [replace(row, published_at=datetime.now(UTC) - 50 * HOUR) for row in missing]
    operator.ran("r1", long_ago)
    stock = operator.pair.stock
    note = {"purged_table": "inbox", "purged_until": datetime.now(UTC) - 24 * HOUR}
    with stock.engine.begin() as connection:
        connection.execute(insert(stock.app.tables.purged), note)

    (left,) = operator.answers("repair", "last", "--yes")["not_repairable"]

    assert left["rows"] == 3
    assert "purged" in left["reason"]


def test_rows_possibly_purged_anywhere_are_not_published_again(
    operator: Operator, missing: list[ListedRow]
):
    fresh = operator.pair.absent()
    operator.configure(orders="PT10H")
    operator.ran("r1", fresh)
    named = ("repair", "last", "--verdict", "ABSENT_FROM_TOPIC")
    (tried,) = operator.answers(*named, "--dry-run")["repaired"]
    assert tried["done"] == 3

    long_ago = [replace(row, published_at=datetime.now(UTC) - 9.5 * HOUR) for row in fresh]
    write_parquet(operator.folder / "r1" / "rows", long_ago, run_id="r1")

    (left,) = operator.answers(*named, "--yes")["not_repairable"]
    assert left["rows"] == 3
    assert "purged" in left["reason"]


def test_run_without_findings_cannot_be_repaired(operator: Operator, missing: list[ListedRow]):
    assert "no run 'last'" in operator.says("repair", "last").stderr
    operator.runs.begin("r0", mode="full", who="night@host")
    assert "r0 is still running" in operator.says("repair", "r0").stderr
    operator.runs.finish("r0", outcome="ERROR", problem="no Java")

    result = operator.says("repair", "last")

    assert result.exit_code == 3
    assert "run r0 broke off (ERROR)" in result.stderr


def test_runs_of_another_file_of_the_same_name_are_refused(
    operator: Operator, missing: list[ListedRow]
):
    operator.ran("r1", missing, judged=judged_by("orders", "stock"))
    operator.ran("r2", missing, judged=judged_by("orders", "billing"))

    assert operator.answers("repair", "last", "--dry-run")["run"] == "r1"
    result = operator.says("repair", "r2", "--yes")

    assert result.exit_code == 3
    assert "service billing was taken out; service stock was added" in result.stderr
    assert operator.pair.orders.outbox() == {"PROCESSED": 3}


def judged_by(*names: str) -> str:
    """Return the basis of a run over services with the configuration of the operator."""
    services = tuple(ServiceDatabase(name=name, url="postgresql://db/d") for name in names)
    request = ReconcileRequest(services=services, folder=Path("unused"))
    return basis.to_json(basis.basis_of(request, {}))


def was_in_order(operator: Operator, *, until: datetime, groups: tuple[str, ...]) -> None:
    """Store a good run that has met events of these groups of stock."""
    received = tuple(
        Received(
            downstream="stock",
            group=group,
            source="orders",
            kind=TxKind.COMMIT,
            topic="orders.placed",
            event_type="orders.placed",
        )
        for group in groups
    )
    judged = basis.from_json(judged_by("orders", "stock"))
    assert judged is not None
    met = replace(judged, observed=Observed(received=received))
    operator.runs.begin("good", mode="full", who="night@host", basis=basis.to_json(met))
    operator.runs.finish(
        "good", outcome="CLEAN", good=True, watermarks={"orders": until, "stock": until}
    )


@pytest.mark.parametrize("verdict", ["MISSING_DOWNSTREAM", "ABSENT_FROM_TOPIC"])
def test_event_found_in_order_before_needs_the_restored_option(operator: Operator, verdict: str):
    """The inbox was emptied, or moved without its rows: the effects exist."""
    pair = operator.pair
    pair.write(3)
    pair.work()
    was_in_order(operator, until=datetime.now(UTC) + HOUR, groups=("stock", "mail"))
    pair.stock.execute("DELETE FROM shield_inbox WHERE consumer_group = 'stock'")
    found = pair.missing("stock") if verdict == "MISSING_DOWNSTREAM" else pair.absent()
    operator.ran("r1", found)
    command = ("repair", "last", "--verdict", verdict, "--yes")

    said = operator.answers(*command)
    assert [each["done"] for each in said["repaired"]] == []
    ((reason, rows),) = [(each["reason"], each["rows"]) for each in said["not_repairable"]]
    assert rows == 3
    assert "an earlier run found it in order" in reason

    (done,) = operator.answers(*command, "--restored", "stock")["repaired"]
    assert done["done"] == 3


@pytest.mark.parametrize(
    ("until", "groups"),
    [(timedelta(days=1), ("mail",)), (-HOUR, ("stock", "mail"))],
    ids=["the group is new since", "the events are younger"],
)
def test_event_that_no_run_found_in_order_is_delivered(
    operator: Operator, missing: list[ListedRow], until: timedelta, groups: tuple[str, ...]
):
    was_in_order(operator, until=datetime.now(UTC) + until, groups=groups)
    operator.ran("r1", missing)

    (done,) = operator.answers("repair", "last", "--yes")["repaired"]

    assert done["done"] == 3


def test_restored_service_must_be_in_the_file(operator: Operator, missing: list[ListedRow]):
    operator.ran("r1", missing)
    result = operator.says("repair", "last", "--yes", "--restored", "stok")
    assert result.exit_code == 3
    assert "--restored stok" in result.stderr
    assert "only orders, stock" in result.stderr


def test_folder_reused_by_a_later_run_is_refused(
    operator: Operator, missing: list[ListedRow], tmp_path: Path
):
    first, second = operator.ran("r1", missing), operator.ran("r2", missing)
    copy = tmp_path / "copy"
    first.rename(copy)
    second.rename(first)

    result = operator.says("repair", "r1", "--yes")
    assert result.exit_code == 3
    assert "holds the findings of run r2 by now" in result.stderr
    gone = operator.says("repair", "r2", "--yes")
    assert "repair on the machine of night@host" in gone.stderr

    assert operator.answers("repair", "r1", "--yes", "--folder", str(copy))["run"] == "r1"


def test_rows_of_another_run_in_the_folder_are_refused(
    operator: Operator, missing: list[ListedRow]
):
    """As where two runs have written to one folder concurrently."""
    folder = operator.ran("r1", missing)
    write_parquet(folder / "rows", missing, run_id="r2")

    result = operator.says("repair", "r1", "--yes")

    assert result.exit_code == 3
    assert "are those of run r2, not of r1" in result.stderr
    assert operator.pair.received("stock") == []


class NeverPurged:
    """An operator whose services keep all rows, before and after an inbox is emptied."""

    def __init__(self, operator: Operator) -> None:
        self.operator, self.pair = operator, operator.pair
        self.pair.write(3)
        self.pair.work()

    def run(self, rows: list[ListedRow] | None = None, **noted: Any) -> None:
        """Store a run of the present databases."""
        self.operator.ran("r1", rows or [], judged=self.operator.judged(**noted))

    def empty(self) -> None:
        """Delete the rows of the inbox, and keep the effects."""
        self.pair.stock.execute("DELETE FROM shield_inbox")

    def refused(self, *options: str) -> str:
        """Return why the repair hands no event over."""
        data = self.operator.answers("repair", "last", "--yes", *options)
        assert data["repaired"] == data["handed_over"] == []
        (left,) = data["not_repairable"]
        assert (left["verdict"], left["rows"]) == ("MISSING_DOWNSTREAM", 3)
        return str(left["reason"])


@pytest.fixture
def emptied(operator: Operator) -> NeverPurged:
    return NeverPurged(operator)


RESTORED = "repair with `--restored stock`"


@pytest.mark.parametrize("is_noted", [True, False], ids=["seen by the run", "since the run"])
def test_events_of_an_emptied_inbox_need_the_restored_option(emptied: NeverPurged, is_noted: bool):
    rows = emptied.pair.missing("stock")
    if is_noted:
        emptied.empty()
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        emptied.run(rows, incomplete_inboxes={"stock": tomorrow})
    else:
        emptied.run(rows)
        emptied.empty()

    assert RESTORED in emptied.refused()
    assert RESTORED in emptied.refused("--restored", "orders")
    assert RESTORED in emptied.refused("--out-of-order")
    asked = emptied.operator.says("repair", "last", "--restored", "stock", answer="n\n")
    assert f"({emptied.operator.config}, restored as a whole: stock)? [y/N]" in asked.stderr
    shown = emptied.operator.says("repair", "last", "--dry-run", "--restored", "stock").stdout
    assert "restored as a whole  stock" in shown

    data = emptied.operator.answers("repair", "last", "--yes", "--restored", "stock")
    assert data["restored"] == ["stock"]
    assert data["handed_over"] == [{"service": "stock", "group": "stock", "rows": 3}]


def test_event_sent_since_an_inbox_is_complete_is_handed_over(emptied: NeverPurged):
    rows = emptied.pair.missing("stock")
    emptied.empty()
    yesterday = datetime.now(UTC) - timedelta(days=1)
    emptied.run(rows, incomplete_inboxes={"stock": yesterday})

    data = emptied.operator.answers("repair", "last", "--yes")
    assert data["handed_over"] == [{"service": "stock", "group": "stock", "rows": 3}]


def test_inbox_without_runs_is_complete_since_its_oldest_row(emptied: NeverPurged):
    """As where the database with the runs was lost, or an earlier release made the runs."""
    rows = emptied.pair.missing("stock")
    emptied.empty()
    emptied.run(rows, incomplete_inboxes=None)
    assert RESTORED in emptied.refused()

    emptied.operator.configure(margin="PT0S")
    emptied.pair.write(1)
    emptied.pair.work()
    emptied.operator.ran("r2", rows, judged=emptied.operator.judged(incomplete_inboxes=None))
    assert RESTORED in emptied.refused(), "its oldest row is younger than the events"

    emptied.pair.stock.execute("UPDATE shield_inbox SET settled_at = now() - interval '1 day'")
    data = emptied.operator.answers("repair", "last", "--yes", "--out-of-order")
    assert data["handed_over"] == [{"service": "stock", "group": "stock", "rows": 3}]


def test_copy_is_sent_despite_an_empty_inbox_without_such_events(emptied: NeverPurged):
    """The inbox of orders is empty: it receives only rollbacks."""
    emptied.operator.ran(
        "r1",
        emptied.pair.absent(),
        judged=emptied.operator.judged(incomplete_inboxes=None, observed=Observed(received=())),
    )
    emptied.pair.stock.execute("UPDATE shield_inbox SET settled_at = now() - interval '1 day'")

    command = ("repair", "last", "--verdict", "ABSENT_FROM_TOPIC", "--yes")
    (done,) = emptied.operator.answers(*command)["repaired"]
    assert done["done"] == 3


def test_older_run_is_repaired_with_the_facts_of_later_runs(emptied: NeverPurged):
    rows = emptied.pair.missing("stock")
    emptied.operator.ran("r0", rows, judged=emptied.operator.judged())
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    emptied.run(rows, incomplete_inboxes={"stock": tomorrow})

    data = emptied.operator.answers("repair", "r0", "--yes")
    assert data["handed_over"] == []
    assert RESTORED in data["not_repairable"][0]["reason"]


def refusing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder unreadable for this account; a file mode does not stop root."""
    for name in ("open", "iterdir", "stat"):
        real = getattr(Path, name)

        def refused(self: Path, *given: Any, _real: Any = real, **named: Any) -> Any:
            if path in (self, *self.parents):
                raise PermissionError(13, "Permission denied", str(self))
            return _real(self, *given, **named)

        monkeypatch.setattr(Path, name, refused)


@pytest.mark.parametrize("part", [".", "rows"])
def test_a_folder_that_this_account_may_not_enter_is_an_error(
    operator: Operator, missing: list[ListedRow], part: str, monkeypatch: pytest.MonkeyPatch
):
    refusing(operator.ran("r1", missing) / part, monkeypatch)

    result = operator.says("repair", "last", "--yes")

    assert result.exit_code == 3
    assert "cannot be read: [Errno 13] Permission denied" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("text", ['{"run_id": "r1"', "", "[]", b"\xff"])
def test_incomplete_findings_are_an_error(
    operator: Operator, missing: list[ListedRow], text: str | bytes
):
    findings = operator.ran("r1", missing) / "summary.json"
    findings.write_bytes(text if isinstance(text, bytes) else text.encode())

    result = operator.says("repair", "last", "--yes")

    assert result.exit_code == 3
    assert f"{findings} does not hold the findings of a run, or only a part" in result.stderr
    assert operator.pair.received("stock") == []


def test_a_defect_ends_with_status_3_and_its_traceback(
    operator: Operator, missing: list[ListedRow], monkeypatch: pytest.MonkeyPatch
):
    operator.ran("r1", missing)
    monkeypatch.setattr("shieldtx.cli.reconcile_repair.Repair", None)

    result = operator.says("repair", "last", "--yes")

    assert result.exit_code == 3
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert "TypeError: 'NoneType' object is not callable" in result.stderr


@pytest.mark.parametrize("command", [["repair", "last", "--yes"], ["runs"]])
def test_unusable_database_is_named_without_its_password(operator: Operator, command):
    wrong = operator.pair.orders.engine.url.set(password="hunter2", port=1)
    operator.variables["ORDERS_URL"] = wrong.render_as_string(hide_password=False)

    result = operator.says(*command)

    assert result.exit_code == 3
    assert "the database cannot be used" in result.stderr
    assert "hunter2" not in result.output


def test_tables_of_an_older_release_ask_for_an_upgrade(operator: Operator):
    operator.pair.stock.app.schema.downgrade("0002")

    result = operator.says("repair", "last")

    assert result.exit_code == 3
    message = f"service stock: the tables are at revision 0002, this shieldtx needs {HEAD}"
    assert message in result.stderr


def test_runs_are_listed_the_latest_first(operator: Operator, missing: list[ListedRow]):
    operator.ran("r1", missing)
    operator.runs.begin("r2", mode="incremental", who="night@host", folder="/runs/r2")

    second, first = operator.answers("runs")

    assert (second["run"], second["outcome"], second["mode"]) == ("r2", "RUNNING", "incremental")
    assert (first["run"], first["outcome"], first["mismatches"]) == ("r1", "MISMATCHES", 3)
    assert first["totals"] == {"MISSING_DOWNSTREAM": 3}
    table = operator.says("runs", "--limit", "1").stdout
    assert "r2" in table
    assert "r1" not in table


def test_empty_list_of_runs_names_other_configurations(operator: Operator):
    assert "other configurations" not in operator.says("runs").stderr
    operator.runs.begin("r1", mode="full", who="night@host", folder="/runs/r1")
    operator.runs.finish("r1", outcome="CLEAN")
    operator.pair.orders.execute("UPDATE shield_reconcile_run SET scope = 'weekly'")

    result = operator.says("runs", "--json")

    assert (result.exit_code, result.stdout) == (0, "[]\n")
    assert "note: nightly has no runs; other configurations have some: weekly" in result.stderr


def test_folder_without_the_counted_rows_is_refused(operator: Operator, missing: list[ListedRow]):
    folder = operator.ran("r1", missing)
    for file in (folder / "rows").rglob("*.parquet"):
        file.unlink()

    refused = operator.says("repair", "last", "--yes", "--folder", str(folder))

    assert refused.exit_code == 3
    assert "holds no Parquet file, but run r1 counted 3 mismatches" in refused.stderr
