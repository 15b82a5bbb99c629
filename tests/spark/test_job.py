"""Tests of whole runs over two real databases with planted truth."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import psutil
import pyarrow.parquet as pq
import pytest
from sqlalchemy import make_url, text

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile import spark_launcher
from shieldtx.reconcile.expectations import NO_GROUP, ExpectedGroup
from shieldtx.reconcile.findings import PAYLOAD_LETTERS, OutputFolder, RunOutcome, from_json
from shieldtx.reconcile.request import ReconcileRequest, Selection, to_json
from shieldtx.reconcile.rules import PAIRS
from shieldtx.reconcile.verdicts import Verdict
from spark.sources.server_checks import Servers
from tests.conftest import wait
from tests.spark.planting import TOPIC
from tests.spark.running import reconciled
from tests.support.folders import assert_free_of
from tests.support.project import ROOT

O, I, V = OutboxStatus, InboxStatus, Verdict  # noqa: E741  short, for what is planted
COMMIT, ROLLBACK = TxKind.COMMIT, TxKind.ROLLBACK
MARGIN = timedelta(minutes=10)
DAY = 24 * 60


class Planted:
    """Puts events into two services and notes the verdict that each event deserves."""

    def __init__(self, orders, stock):
        self.orders, self.stock = orders, stock
        self.truth = set()
        self.purged = set()

    def event(self, verdict, status=O.PROCESSED, *, mail=V.MATCHED, **columns):
        """Write an event; the group mail treats it as `mail` states, reserve as the test does."""
        event_id = self.orders.write(status, **columns)
        self.expect(COMMIT, "reserve", event_id, verdict)
        self.expect(COMMIT, "mail", event_id, mail)
        if mail is V.MATCHED:
            self.received(
                event_id, group="mail", age=columns.get("age", 60), key=columns.get("key")
            )
        return event_id

    def received(self, event_id, status=I.PROCESSED, **columns):
        fields = {"group": "reserve", "source": "orders", **columns}
        return self.stock.receive(event_id, status, **fields)

    def rollback(self, verdict, of, status=O.PROCESSED, **columns):
        """Write a rollback of the event `of`."""
        taken_back = {"kind": ROLLBACK, "causation_id": of, "causation_source": "orders"}
        event_id = self.stock.write(status, **{**taken_back, **columns})
        self.expect(ROLLBACK, "refund", event_id, verdict)
        return event_id

    def returned(self, event_id, of, status=I.PROCESSED, *, compensated=True, **columns):
        """Put a rollback into the inbox of the service whose event `of` it takes back."""
        return self.orders.receive(
            event_id,
            status,
            **{
                "group": "refund",
                "source": "stock",
                "kind": ROLLBACK,
                "causation_id": of,
                "causation_source": "orders",
                "compensated_id": of if compensated else None,
                **columns,
            },
        )

    def expect(self, kind, group, event_id, verdict):
        self.truth.add((kind.value, group, str(event_id), verdict.value))

    @property
    def counts(self):
        return Counter((kind, group, verdict) for kind, group, _, verdict in self.truth)

    @property
    def listed(self):
        listed = {row for row in self.truth if V[row[3]].is_listed}
        return {row for row in listed if (row[2], V[row[3]]) not in self.purged}

    def purge(self, event_id):
        """Note that one side has purged its row of an event, and that the other side has a row."""
        self.purged.add((str(event_id), V.TOO_OLD))


@pytest.fixture
def planted(orders, stock):
    return Planted(orders, stock)


def request(orders, stock, folder, jdbc_jar, **changes):
    fields = {
        "services": (orders.database(), stock.database()),
        "folder": folder,
        "margin": MARGIN,
        "jdbc_jar": jdbc_jar,
        "first_rows": 2,
    }
    return ReconcileRequest(**{**fields, **changes})


def plant_clean_events(planted):
    """Plant a night without mismatches: effects, one compensated refusal, one discard."""
    for _ in range(12):
        planted.received(planted.event(V.MATCHED))
    refused = planted.event(V.REFUSED)
    planted.received(refused, I.MAX_RECONSUMED)
    planted.returned(planted.rollback(V.MATCHED, refused), refused)
    planted.event(V.NEVER_SENT, O.DISCARDED, mail=V.NEVER_SENT)


def plant_every_verdict(planted):
    plant_clean_events(planted)
    _plant_forth(planted)
    _plant_young(planted)
    _plant_back(planted)


def _plant_forth(p):
    p.event(V.PARKED, O.FAILED, mail=V.PARKED)
    p.event(V.PARKED, O.UNRESOLVED, mail=V.PARKED)
    overtaken = p.event(V.REFUSED)
    p.received(overtaken, I.FENCED)
    of = {"kind": ROLLBACK, "causation_id": overtaken, "causation_source": "orders"}
    p.expect(ROLLBACK, "reserve", p.received(new_event_id(), **of), V.UNKNOWN_UPSTREAM)
    p.received(p.event(V.STATUS_DISAGREES), I.FENCED)
    p.received(p.event(V.ENVELOPE_DIFFERS), key="another")
    # Lost by one group alone, and by both.
    for _ in range(3):
        p.event(V.MISSING_DOWNSTREAM)
    p.event(V.MISSING_DOWNSTREAM, mail=V.MISSING_DOWNSTREAM)
    # Rows without an event.
    for status in (I.PROCESSED, I.INIT, I.FENCED):
        p.expect(COMMIT, "reserve", p.received(new_event_id(), status), V.UNKNOWN_UPSTREAM)
    # Sent, by the inbox; not sent, by the outbox.
    p.received(p.event(V.STATUS_DISAGREES, O.FAILED, mail=V.PARKED))
    p.received(p.event(V.STATUS_DISAGREES, O.DISCARDED, mail=V.NEVER_SENT), I.MAX_RECONSUMED)
    p.received(p.event(V.STUCK, O.INIT, mail=V.STUCK), I.PROCESSING)
    # Open, and nothing will happen.
    for status in (O.INIT, O.PROCESSING, O.HALF):
        p.event(V.STUCK, status, mail=V.STUCK)
    p.received(p.event(V.STUCK), I.PROCESSING)
    p.received(p.event(V.STUCK), I.INIT)
    p.received(p.event(V.NEITHER_EFFECT_NOR_COMPENSATION), I.MAX_RECONSUMED)
    p.received(p.event(V.PAYLOAD_DIFFERS), payload='{"card": "payload of another event"}')
    stubborn = p.event(V.ATTEMPTS_DIFFER)
    p.received(stubborn, I.MAX_RECONSUMED, attempts=4)
    p.returned(p.rollback(V.MATCHED, stubborn), stubborn)
    kept = p.event(V.EFFECT_DESPITE_ROLLBACK, mail=V.EFFECT_DESPITE_ROLLBACK)
    p.received(kept)
    p.received(kept, group="mail")
    p.returned(p.rollback(V.MATCHED, kept), kept)
    # Purged on one side.
    p.purge(p.event(V.TOO_OLD, age=40 * DAY))
    ghost = p.received(new_event_id(), age=40 * DAY)
    p.expect(COMMIT, "reserve", ghost, V.TOO_OLD)
    p.purge(ghost)
    p.received(p.event(V.TOO_OLD, age=40 * DAY), I.MAX_RECONSUMED, age=40 * DAY)
    # Old, and complete.
    p.received(p.event(V.MATCHED, age=40 * DAY), age=40 * DAY)


def _plant_young(p):
    p.event(V.IN_FLIGHT, age=60, settled_age=9)
    p.event(V.IN_FLIGHT, O.INIT, age=1, mail=V.IN_FLIGHT)
    p.event(V.IN_FLIGHT, O.INIT, age=60, due_age=-DAY, waiting=True, mail=V.IN_FLIGHT)
    p.event(V.MISSING_DOWNSTREAM, age=60, settled_age=11)
    p.expect(COMMIT, "reserve", p.received(new_event_id(), age=9), V.IN_FLIGHT)
    p.received(p.event(V.IN_FLIGHT, key="k"), I.PROCESSING, age=60, due_age=-90, key="k")
    p.received(p.event(V.IN_FLIGHT, key="k"), I.INIT, age=50, key="k")
    p.received(p.event(V.IN_FLIGHT), I.MAX_RECONSUMED, age=60, settled_age=5)
    p.received(p.event(V.IN_FLIGHT, O.PROCESSING, age=8, mail=V.IN_FLIGHT))
    # Too young to be missed, and already complete.
    p.received(p.event(V.MATCHED, age=2), age=1)


def _plant_back(p):
    def refused():
        event_id = p.event(V.REFUSED)
        p.received(event_id, I.MAX_RECONSUMED)
        return event_id

    p.rollback(V.MISSING_DOWNSTREAM, refused())
    p.rollback(V.PARKED, refused(), O.FAILED)
    p.rollback(V.STUCK, refused(), O.INIT)
    p.rollback(V.IN_FLIGHT, refused(), settled_age=3)
    dead = refused()
    p.returned(p.rollback(V.PARKED, dead), dead, I.DEAD, compensated=False)
    closed = refused()
    p.returned(p.rollback(V.DISCARDED, closed), closed, I.DISCARDED, compensated=False)
    stuck = refused()
    p.returned(p.rollback(V.STUCK, stuck), stuck, I.PROCESSING, compensated=False)
    undone = refused()
    p.returned(p.rollback(V.MATCHED, undone), undone)
    p.returned(p.rollback(V.MATCHED, undone), undone, compensated=False)
    skipped = refused()
    p.returned(p.rollback(V.ROLLBACK_NOT_COMPENSATED, skipped), skipped, compensated=False)
    ghost = new_event_id()
    p.returned(ghost, new_event_id())
    p.expect(ROLLBACK, "refund", ghost, V.UNKNOWN_UPSTREAM)


def found_rows(folder):
    return {
        (row["kind"], row["consumer_group"], row["event_id"], row["verdict"])
        for row in pq.read_table(folder.rows).to_pylist()
    }


def found_counts(folder):
    return {
        (row["kind"], row["consumer_group"], row["verdict"]): row["rows"]
        for row in pq.read_table(folder.summary).to_pylist()
    }


LIMITED = (
    ExpectedGroup(name="reserve", topics=(TOPIC,), upstreams=("orders",), max_attempts=3),
    ExpectedGroup(name="mail", topics=(TOPIC,), upstreams=("orders",)),
    # With this group, no group of stock compensates events of orders.
    ExpectedGroup(name="release", kind=ROLLBACK),
)


@pytest.mark.parametrize("push_down", [True, False])
def test_a_run_finds_all_that_was_planted_and_nothing_else(
    planted, orders, stock, tmp_path, spark, jdbc_jar, push_down
):
    plant_every_verdict(planted)
    kept = {"retention": timedelta(days=30)}
    folder = OutputFolder(path=tmp_path / "report")
    findings = reconciled(
        spark,
        request(
            orders,
            stock,
            folder.path,
            jdbc_jar,
            services=(orders.database(**kept), stock.database(**kept, groups=LIMITED)),
            push_down=push_down,
            run_id="r1",
        ),
    )
    assert from_json(folder.findings.read_bytes()) == findings
    assert pq.read_table(folder.rows)["run_id"].unique().to_pylist() == [findings.run_id] == ["r1"]
    assert findings.outcome is RunOutcome.MISMATCHES
    assert {V[verdict] for *_, verdict in planted.truth} == set(PAIRS.verdicts)
    assert found_rows(folder) == planted.listed
    assert pq.read_table(folder.rows).num_rows == len(planted.listed)
    assert found_counts(folder) == planted.counts
    counts = {(c.pair.kind, c.pair.group, c.verdict): c.rows for c in findings.counts}
    assert counts == planted.counts
    shown = Counter((row.pair.kind, row.pair.group, row.verdict) for row in findings.first_rows)
    assert shown == {
        key: min(rows, 2) for key, rows in planted.counts.items() if V[key[2]].is_mismatch
    }
    page = folder.page.read_text()
    wrong = sum(rows for (*_, verdict), rows in planted.counts.items() if V[verdict].is_mismatch)
    listed = pq.read_table(folder.rows).select(["event_id", "verdict"]).to_pylist()
    events = {row["event_id"] for row in listed if V[row["verdict"]].is_mismatch}
    assert f"{wrong} mismatches in {len(events)} events." in page
    for row in findings.first_rows:
        assert row.event_id in page
    assert_free_of(folder.path, make_url(orders.url).password, "payload out of sight")


def test_a_run_over_sound_services_is_clean(planted, orders, stock, tmp_path, spark, jdbc_jar):
    plant_clean_events(planted)
    findings = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar))
    assert findings.outcome is RunOutcome.CLEAN
    assert found_counts(OutputFolder(path=tmp_path)) == planted.counts
    assert found_rows(OutputFolder(path=tmp_path)) == set()


def test_a_run_over_empty_tables_is_clean(orders, stock, tmp_path, spark, jdbc_jar):
    findings = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar))
    assert (findings.outcome, findings.counts) == (RunOutcome.CLEAN, ())


def test_a_second_run_replaces_the_first(planted, orders, stock, tmp_path, spark, jdbc_jar):
    lost = planted.event(V.MISSING_DOWNSTREAM)
    planted.received(planted.event(V.MATCHED))
    assert (
        reconciled(spark, request(orders, stock, tmp_path, jdbc_jar)).outcome
        is RunOutcome.MISMATCHES
    )
    planted.received(lost)
    assert reconciled(spark, request(orders, stock, tmp_path, jdbc_jar)).outcome is RunOutcome.CLEAN
    assert found_rows(OutputFolder(path=tmp_path)) == set()


def test_a_long_transaction_on_either_side_keeps_rows_in_flight(
    planted, orders, stock, tmp_path, spark, jdbc_jar
):
    asked = request(orders, stock, tmp_path, jdbc_jar, margin=timedelta(0))
    planted.received(planted.event(V.MATCHED))
    for service in (orders, stock):
        with service.engine.connect() as connection:
            began = connection.scalar(text("SELECT now()"))
            lost = planted.event(V.MISSING_DOWNSTREAM, age=0, mail=V.MISSING_DOWNSTREAM)
            findings = reconciled(spark, asked)
            assert {b.window.watermark for b in findings.bounds if b.kind is COMMIT} == {began}
            assert findings.totals[V.IN_FLIGHT] == 2
            assert findings.outcome is RunOutcome.CLEAN
        findings = reconciled(spark, asked)
        assert findings.totals[V.MISSING_DOWNSTREAM] == 2
        for group in ("reserve", "mail"):
            planted.received(lost, group=group)


def test_run_without_any_receiving_group_is_not_clean(orders, stock, tmp_path, spark, jdbc_jar):
    orders.write()
    findings = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar))
    assert findings.outcome is RunOutcome.NOT_JUDGED
    assert "name the groups" in findings.problems[0]


def test_named_group_is_missed_before_its_first_receipt(orders, stock, tmp_path, spark, jdbc_jar):
    lost = orders.write()
    named = (ExpectedGroup(name="reserve", topics=("orders.placed",)),)
    services = (orders.database(), stock.database(groups=named))
    findings = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar, services=services))
    assert [(row.event_id, row.pair.group, row.verdict) for row in findings.first_rows] == [
        (str(lost), "reserve", V.MISSING_DOWNSTREAM)
    ]


def test_a_rollback_that_no_group_has_ever_received_is_missing(
    planted, orders, stock, tmp_path, spark, jdbc_jar
):
    refused = planted.event(V.REFUSED)
    planted.received(refused, I.MAX_RECONSUMED)
    rollback = planted.rollback(V.MISSING_DOWNSTREAM, refused)
    findings = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar))
    assert [(row.event_id, row.pair.group, row.verdict) for row in findings.first_rows] == [
        (str(rollback), NO_GROUP, V.MISSING_DOWNSTREAM)
    ]


@pytest.fixture
def silent_server():
    """Return a listener that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(150)
        yield listener


def request_to(silent_server, orders, stock, folder, jdbc_jar):
    """Return a request for a run whose upstream's database never answers."""
    port = silent_server.getsockname()[1]
    url = make_url(orders.url).set(port=port).render_as_string(hide_password=False)
    services = (orders.database(url=url), stock.database())
    return request(orders, stock, folder, jdbc_jar, services=services)


def wait_for_job(silent_server, log):
    """Wait until a job has its Spark and waits for that database; return its connection."""
    connection, _ = silent_server.accept()
    wait(lambda: log.exists() and "for their clocks" in log.read_text(), "Spark starts", within=150)
    return connection


def start_job(orders, stock, silent_server, folder, jdbc_jar):
    """Start the job's process, and return when it waits for a database that never answers."""
    asked = request_to(silent_server, orders, stock, folder, jdbc_jar)
    arguments, environment = spark_launcher.command()
    log = OutputFolder(path=folder).log
    with log.open("wb") as said:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            cwd=folder,
        )
    process.stdin.write(to_json(asked) + b"\n")
    process.stdin.flush()
    return process, wait_for_job(silent_server, log)


def test_job_and_its_java_end_with_the_starting_process(
    orders, stock, silent_server, tmp_path, jdbc_jar
):
    process, connection = start_job(orders, stock, silent_server, tmp_path, jdbc_jar)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    try:
        assert "java" in {member.name() for member in family}
        secret = make_url(orders.url).password
        for member in family:
            # The shell that started Java may have ended.
            with suppress(psutil.NoSuchProcess):
                assert secret not in " ".join(member.cmdline())
                assert secret not in " ".join(member.environ().values())
        process.stdin.close()
        assert process.wait(60) == RunOutcome.ERROR
        _, alive = psutil.wait_procs(family, timeout=60)
        assert alive == []
    finally:
        connection.close()
        for member in family:
            if member.is_running():
                member.kill()


def test_interrupt_of_the_launching_process_leaves_no_remains(
    orders, stock, silent_server, tmp_path, jdbc_jar
):
    asked = request_to(silent_server, orders, stock, tmp_path, jdbc_jar)
    program = (
        "import sys; from shieldtx.reconcile import request, spark_launcher\n"
        "spark_launcher.run(request.from_json(sys.stdin.readline()))"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    launcher.stdin.write(to_json(asked) + b"\n")
    launcher.stdin.flush()
    connection = wait_for_job(silent_server, OutputFolder(path=tmp_path).log)
    family = psutil.Process(launcher.pid).children(recursive=True)
    try:
        assert len(family) > 1
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) != 0
        _, alive = psutil.wait_procs(family, timeout=60)
        assert alive == []
    finally:
        connection.close()
        for member in family:
            if member.is_running():
                member.kill()


def test_folder_with_foreign_rows_is_left_alone(orders, stock, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "thesis.txt").write_text("three years of work")
    with pytest.raises(ConfigurationError, match="choose another folder"):
        spark_launcher.run(request(orders, stock, tmp_path, None))
    assert (tmp_path / "rows" / "thesis.txt").exists()


def test_missing_spark_or_java_is_reported_with_what_to_install(
    orders, stock, tmp_path, monkeypatch
):
    asked = request(orders, stock, tmp_path, None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="JAVA_HOME"):
        spark_launcher.run(asked)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="Java 17"):
        spark_launcher.run(asked)
    monkeypatch.setattr(spark_launcher, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'shieldtx\[spark\]'"):
        spark_launcher.run(asked)


def test_window_judges_its_events_and_looks_up_their_partners(
    planted, orders, stock, tmp_path, spark, jdbc_jar
):
    planted.received(planted.event(V.MATCHED, age=90), age=90)
    planted.event(V.MISSING_DOWNSTREAM, age=90)
    inside = planted.event(V.MISSING_DOWNSTREAM, age=45)
    now = orders.now()
    window = Selection(
        written_since=now - timedelta(minutes=60), written_until=now - timedelta(minutes=30)
    )
    findings = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar, selection=window))
    assert [(row.event_id, row.verdict) for row in findings.first_rows] == [
        (str(inside), V.MISSING_DOWNSTREAM)
    ]
    assert findings.totals == {V.MATCHED: 1, V.MISSING_DOWNSTREAM: 1}


def test_later_run_judges_moved_and_waiting_rows(planted, orders, stock, tmp_path, spark, jdbc_jar):
    # In order in the earlier run, or lost in it: an incremental run reports neither again.
    planted.received(planted.event(V.MATCHED, age=300), age=300)
    planted.event(V.MISSING_DOWNSTREAM, age=300)
    late = planted.event(V.MATCHED, age=300)
    planted.received(late, age=90)
    # One group has moved; the other received the event long ago.
    half = orders.write(age=300)
    planted.received(half, age=300)
    planted.received(half, group="mail", age=90)
    parked = planted.event(V.PARKED, O.FAILED, mail=V.PARKED, age=300, last_error="no such topic")
    stuck = planted.event(V.STUCK, O.INIT, mail=V.STUCK, age=300)
    lost = planted.event(V.MISSING_DOWNSTREAM, age=90)
    watermark = orders.now() - timedelta(minutes=120)
    moved = Selection(moved_since={"orders": watermark, "stock": watermark})
    findings = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar, selection=moved))
    assert {(row.event_id, row.pair.group, row.verdict) for row in findings.first_rows} == {
        (str(lost), "reserve", V.MISSING_DOWNSTREAM),
        *((str(parked), group, V.PARKED) for group in ("reserve", "mail")),
        *((str(stuck), group, V.STUCK) for group in ("reserve", "mail")),
    }
    matched = {
        count.pair.group: count.rows for count in findings.counts if count.verdict is V.MATCHED
    }
    assert matched == {"reserve": 2, "mail": 3}


def test_payloads_are_shown_when_they_are_asked_for(
    planted, orders, stock, tmp_path, spark, jdbc_jar
):
    orders.write(payload='{"of": "the upstream"}')
    planted.received(planted.event(V.MATCHED))
    planted.received(new_event_id(), payload='{"of": "only the downstream"}')
    asked = request(orders, stock, tmp_path, jdbc_jar, show_payloads=True)
    findings = reconciled(spark, asked)
    assert {row.verdict: row.payload for row in findings.first_rows} == {
        V.MISSING_DOWNSTREAM: '{"of": "the upstream"}',
        V.UNKNOWN_UPSTREAM: '{"of": "only the downstream"}',
    }
    assert "only the downstream" in OutputFolder(path=tmp_path).page.read_text()


def test_of_a_large_payload_the_beginning_is_read(
    planted, orders, stock, tmp_path, spark, jdbc_jar
):
    orders.write(payload=f'{{"of": "{"x" * 100_000}"}}')
    planted.received(planted.event(V.MATCHED))
    asked = request(orders, stock, tmp_path, jdbc_jar, show_payloads=True)
    rows = reconciled(spark, asked).first_rows
    assert {(len(row.payload), row.payload_letters) for row in rows} == {(PAYLOAD_LETTERS, 100_010)}
    assert "and 98,010 more characters" in OutputFolder(path=tmp_path).page.read_text()


def test_services_whose_clocks_are_an_hour_apart_are_not_judged(
    orders, stock, tmp_path, spark, jdbc_jar, monkeypatch
):
    orders.write()
    clock = Servers._clock

    def ahead(servers, service):
        found = clock(servers, service)
        hour = timedelta(hours=service.name == "stock")
        return replace(found, now=found.now + hour, ahead=found.ahead + hour)

    monkeypatch.setattr(Servers, "_clock", ahead)
    named = (ExpectedGroup(name="reserve", topics=(TOPIC,)),)
    services = (orders.database(), stock.database(groups=named))
    findings = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar, services=services))
    assert findings.outcome is RunOutcome.NOT_JUDGED
    assert "the clock of stock is 3,6" in findings.problems[0]
    assert findings.totals == {V.IN_FLIGHT: 1}
