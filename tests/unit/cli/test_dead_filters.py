"""`dead list`, `dead replay`, `dead discard` and `trace`: filters and many rows, on SQLite."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import Result
from sqlalchemy import insert, text

from shieldtx import InboxStatus, OutboxStatus, TxKind, new_event_id
from shieldtx.brokers import cloudevents
from shieldtx.cli import bulk
from shieldtx.domain.events import Envelope
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import Parked
from shieldtx.store.inbox_store import SqlInboxStore
from tests.support.rows_in_any_state import inbox_row, outbox_row
from tests.support.shop_commands import Run, runner_on
from tests.support.write_side_shop import Shop


@pytest.fixture
def run(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner_on(shop, tmp_path, monkeypatch)


def put(shop: Shop, status: OutboxStatus | InboxStatus, **columns: Any) -> str:
    """Write a row in this state and return the id of its event."""
    row = (outbox_row if isinstance(status, OutboxStatus) else inbox_row)(status, **columns)  # type: ignore[arg-type]
    table = shop.tables.outbox if isinstance(status, OutboxStatus) else shop.tables.inbox
    with shop.engine.begin() as connection:
        number = connection.execute(text(f"SELECT count(*) FROM {table.name}")).scalar_one()
        connection.execute(insert(table).values(row | {"seq": number + 1}))
    return str(row["event_id"])


def park(shop: Shop, offset: int, *, reason: str = "repaired", **fields: Any) -> str:
    """Park an event of the group stock and return its id."""
    values: dict[str, Any] = {
        "id": new_event_id(),
        "type": "orders.placed",
        "source": "orders",
        "topic": "orders.placed",
        "key": "k1",
        "payload": "{}",
        "time": datetime.now(UTC),
    }
    envelope = Envelope(**(values | fields))
    sent = cloudevents.encode(envelope, "")
    record = ReceivedRecord(sent.topic, 0, offset, sent.key, sent.value, sent.headers)
    store = SqlInboxStore(shop.engine, shop.tables)
    store.receive("stock", [], [Parked(record=record, reason=reason)])
    return str(envelope.id)


def refs(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [row["ref"] for row in json.loads(result.stdout)]


def test_list_has_all_rows_that_wait_for_an_operator(shop: Shop, run: Run):
    waiting = {
        put(shop, OutboxStatus.FAILED),
        put(shop, OutboxStatus.UNRESOLVED, event_type="orders.paid"),
        put(shop, InboxStatus.DEAD),
    }
    park(shop, 1)
    put(shop, InboxStatus.PROCESSED)

    found = json.loads(run("dead", "list", "--json").stdout)

    assert {row["ref"] for row in found if row["status"] != "PARKED"} == waiting
    [parked] = [row for row in found if row["status"] == "PARKED"]
    assert (parked["event_type"], parked["kind"]) == ("orders.placed", "COMMIT")
    assert refs(run("dead", "list", "--status", "unresolved", "--json")) == [
        row["ref"] for row in found if row["status"] == "UNRESOLVED"
    ]


def test_given_up_events_are_listed_on_request(shop: Shop, run: Run):
    refused = put(shop, InboxStatus.MAX_RECONSUMED, biz_key="4711")
    put(shop, InboxStatus.MAX_RECONSUMED, biz_key="4712", consumer_group="mail")

    unasked = run("dead", "list")
    listed = run("dead", "list", "--given-up", "--biz-key", "4711")

    assert unasked.stdout == "no dead letters\n"
    assert unasked.stderr == "given-up events exist: --given-up lists them\n"
    assert f"MAX_RECONSUMED {refused}" in listed.stdout
    assert "orders.placed COMMIT, group orders, key customer-1, business key 4711" in listed.stdout
    assert "sold out" in listed.stdout
    assert "4712" not in listed.stdout
    assert refs(run("dead", "list", "--status", "MAX_RECONSUMED", "--json", "--group", "orders"))
    both = run("dead", "list", "--given-up", "--status", "FAILED")
    assert (both.exit_code, both.stdout) == (2, "")
    assert "--given-up lists MAX_RECONSUMED" in both.stderr


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (InboxStatus.MAX_RECONSUMED, "repeat the business call, which writes a new event"),
        (OutboxStatus.UNRESOLVED, "then use `shieldtx half commit` or `shieldtx half rollback`"),
    ],
)
def test_replay_of_another_state_says_what_to_do(
    shop: Shop, run: Run, status: InboxStatus | OutboxStatus, advice: str
):
    event_id = put(shop, status)

    result = run("dead", "replay", event_id, "--yes")

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"is {status}: only FAILED events of the outbox and DEAD ones" in result.stderr
    assert advice in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--type", "orders.paid"),
        ("--kind", "rollback"),
        ("--key", "k2"),
        ("--biz-key", "4711"),
        ("--error", "signature"),
        ("--since", "2026-03-05T00:00:00Z"),
        ("--type", "orders.paid", "--key", "k2", "--biz-key", "4711", "--kind", "ROLLBACK"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("status", [OutboxStatus.FAILED, InboxStatus.DEAD, "PARKED"])
def test_filter_selects_the_rows_of_each_state(
    shop: Shop, run: Run, status: Any, words: tuple[str, ...]
):
    late = datetime(2026, 3, 6, tzinfo=UTC)
    wanted: dict[str, Any] = {"key": "k2", "biz_key": "4711"}
    if status == "PARKED":
        with shop.engine.begin() as connection:
            connection.execute(text("DELETE FROM shield_parked"))
        park(shop, 1, reason="not an event")
        early = {"parked_at": late - timedelta(days=3)}
        with shop.engine.begin() as connection:
            connection.execute(shop.tables.parked.update().values(**early))
        kind = {"kind": TxKind.ROLLBACK, "causation_id": new_event_id()}
        park(shop, 2, reason="no signature", **wanted, **kind, type="orders.paid")
    else:
        put(shop, status, tx_kind="COMMIT") if status is OutboxStatus.FAILED else None
        put(
            shop,
            status,
            **wanted,
            event_type="orders.paid",
            tx_kind="ROLLBACK",
            settled_at=late,
            last_error="no signature",
        )

    found = json.loads(run("dead", "list", "--status", str(status), *words, "--json").stdout)

    assert [row["biz_key"] for row in found] == ["4711"]


def test_list_shows_the_beginning_of_a_long_header(shop: Shop, run: Run):
    record = ReceivedRecord("orders.placed.commit", 0, 1, b"k", b"", (("ce_type", b"x" * 10**6),))
    parked = Parked(record=record, reason="no event")
    SqlInboxStore(shop.engine, shop.tables).receive("stock", [], [parked])

    [row] = json.loads(run("dead", "list", "--json").stdout)

    assert row["event_type"] == "x" * 256 + "..."
    assert (row["kind"], row["biz_key"]) == (None, None)


def test_filters_alone_or_with_ids_choose_nothing(run: Run):
    for command in (("replay",), ("discard", "--reason", "x")):
        for words in (
            (),
            ("--biz-key", "4711"),
            (str(UUID(int=1)), "--biz-key", "4711"),
            (str(UUID(int=1)), "--status", "DEAD"),
        ):
            result = run("dead", *command, *words)
            assert (result.exit_code, result.stdout) == (2, ""), words
            assert "name rows by their ids, or choose them by --status" in result.stderr


def test_time_without_a_zone_is_refused(run: Run):
    result = run("dead", "list", "--since", "2026-03-01")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "--since: '2026-03-01' has no time zone" in result.stderr


def test_many_are_replayed_after_a_preview(shop: Shop, run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bulk, "BATCH", 2)
    for offset in range(5):
        park(shop, offset, key=f"k{offset}")
    park(shop, 5, reason="another cause")
    words = ("dead", "replay", "--status", "PARKED", "--error", "repaired")

    refused = run(*words, answer="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == (
        "rows to replay: 5, the oldest first\n"
        "       5  PARKED, group stock, orders.placed COMMIT: repaired\n"
        "Replay? [y/N] Aborted: nothing was replayed (use --yes to skip the prompt)\n"
    )
    cut = run(*words, "--limit", "3", answer="y\n")
    assert cut.exit_code == 0
    assert cut.stderr.startswith("more exist: raise --limit\nrows to replay: 3")
    assert cut.stdout.count(" is received: event ") == 3
    assert cut.stdout.endswith("replayed: 3, left as they are: 0\n")
    # The oldest: the others wait, in their order.
    assert [ref.split("/")[3] for ref in refs(run("dead", "list", "--json"))] == ["5", "4", "3"]
    rest = run(*words, "--yes", "--json")
    assert [row["result"] for row in json.loads(rest.stdout)] == ["RECEIVED", "RECEIVED"]
    again = run(*words, "--yes")
    assert (again.exit_code, again.stdout) == (0, "replayed: 0, left as they are: 0\n")


def test_many_failed_events_are_replayed_after_a_warning(shop: Shop, run: Run):
    ids = {put(shop, OutboxStatus.FAILED, unconfirmed=number == 0) for number in range(3)}

    result = run("dead", "replay", "--status", "FAILED", "--type", "orders.placed", "--yes")

    assert result.exit_code == 0
    assert "3  FAILED, outbox, orders.placed COMMIT: the topic is gone" in result.stderr
    assert "Unconfirmed, so that they may have been delivered: 1." in result.stderr
    assert {line.split()[1] for line in result.stdout.splitlines()[:-1]} == ids
    with shop.engine.connect() as connection:
        states = connection.execute(text("SELECT status FROM shield_outbox")).scalars().all()
        audits = connection.scalar(text("SELECT count(*) FROM shield_audit"))
    assert (states, audits) == (["INIT"] * 3, 3)


def test_record_that_does_not_fit_ends_the_replay_with_1(shop: Shop, run: Run):
    event_id = park(shop, 1)
    park(shop, 2, type="orders.unknown")

    result = run("dead", "replay", "--status", "PARKED", "--yes")

    assert result.exit_code == 1
    assert f" is received: event {event_id} waits in the inbox\n" in result.stdout
    assert "is left as it is: group stock has no handler for COMMIT of" in result.stdout
    assert result.stdout.endswith("replayed: 1, left as they are: 1\n")


def test_parked_record_is_replayed_by_its_reference(shop: Shop, run: Run):
    event_id = park(shop, 1)
    [ref] = refs(run("dead", "list", "--json"))

    result = run("dead", "replay", ref)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        f"parked record {ref} is received: event {event_id} waits in the inbox\n"
    )
    assert run("dead", "replay", ref).exit_code == 2


def test_many_are_discarded_after_a_preview(shop: Shop, run: Run):
    for offset in range(60):
        park(shop, offset)
    words = ("dead", "discard", "--status", "PARKED", "--reason", "x", "--limit", "100")

    result = run(*words, "--key", "k1", answer="y\n")

    assert result.exit_code == 0
    assert "      60  PARKED, group stock, orders.placed COMMIT: repaired" in result.stderr
    assert "warning" not in result.stderr
    assert result.stdout.endswith("discarded: 60, left as they are: 0\n")


def test_trace_takes_a_business_key(shop: Shop, run: Run):
    placed = put(shop, OutboxStatus.PROCESSED, biz_key="4711")
    paid = put(shop, OutboxStatus.PROCESSED, event_type="orders.paid", biz_key="4711", key="k2")
    put(shop, OutboxStatus.PROCESSED, biz_key="4712")

    both = run("trace", "--biz-key", "4711")
    assert (both.exit_code, both.stderr) == (0, "")
    assert all(event_id in both.stdout for event_id in (placed, paid))
    assert "business key 4711" in both.stdout
    assert "4712" not in both.stdout
    for words in (("--type", "orders.paid"), ("--key", "k2")):
        one = json.loads(run("trace", "--biz-key", "4711", *words, "--json").stdout)
        assert ([each["event_id"] for each in one["events"]], one["not_asked"]) == ([paid], [])
    none = run("trace", "--biz-key", "4711", "--type", "orders.lost")
    assert (none.exit_code, none.stdout) == (2, "")
    assert "no orders.lost event with business key '4711' in the database of shop" in none.stderr


@pytest.mark.parametrize(
    "words", [(), (str(UUID(int=1)), "--biz-key", "1"), (str(UUID(int=1)), "--key", "k")]
)
def test_trace_needs_one_way_to_name_events(run: Run, words: tuple[str, ...]):
    result = run("trace", *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "name an event by its id, or events by --biz-key" in result.stderr


def test_half_and_delayed_lists_take_a_business_key(shop: Shop, run: Run):
    half = put(shop, OutboxStatus.HALF, biz_key="1")
    put(shop, OutboxStatus.HALF, biz_key="2", event_type="orders.paid")
    waiting = {"waiting": True, "due_at": datetime.now(UTC) + timedelta(days=1)}
    delayed = put(shop, OutboxStatus.INIT, biz_key="3", **waiting)
    put(shop, OutboxStatus.INIT, biz_key="4", key="k2", **waiting)

    assert refs(run("half", "list", "--biz-key", "1", "--json")) == [half]
    assert refs(run("half", "list", "--type", "orders.placed", "--json")) == [half]
    assert len(refs(run("half", "list", "--key", "customer-1", "--json"))) == 2
    assert refs(run("delayed", "list", "--biz-key", "3", "--json")) == [delayed]


@pytest.mark.parametrize("command", [("replay",), ("discard", "--reason", "a test")])
def test_outbox_row_beside_an_inbox_row_is_chosen_by_filters(
    shop: Shop, run: Run, command: tuple[str, ...]
):
    event_id = put(shop, OutboxStatus.FAILED, key="k7")
    put(shop, InboxStatus.DEAD, event_id=UUID(event_id), key="k7")
    refused = run("dead", *command, event_id, "--yes")
    assert refused.exit_code == 2
    chosen = re.search(r"write (--status FAILED --type \S+) and --key", refused.stderr)
    assert chosen, refused.stderr
    done = run("dead", *command, *chosen[1].split(), "--key", "k7", "--yes", "--json")
    assert refs(done) == [event_id]
