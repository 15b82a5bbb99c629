"""`shieldtx delayed`, and a relay process with a real Kafka: list, cancel, reschedule, on time."""

from __future__ import annotations

import getpass
import json
import re
import socket
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event
from tests.acceptance.conftest import Shop
from tests.conftest import Eventually
from tests.support.service import assert_in_time

HOUR = timedelta(hours=1)
WHY = ("--reason", "the customer has paid")
CANCEL = (*WHY, "--yes")


def remind(
    shop: Shop, number: int, key: str = "k", *, biz_key: str | None = None, **due: Any
) -> UUID:
    with Session(shop.writer.engine) as session, session.begin():
        payload = {"number": number}
        event = Event(type="orders.placed", payload=payload, key=key, biz_key=biz_key)
        return shop.writer.outbox.add(session, event, **due)


def status(shop: Shop, event_id: UUID) -> str:
    found = shop.orders.one("SELECT status FROM shield_outbox WHERE event_id = :i", i=event_id)
    return str(found)


def test_delayed_events_are_listed_by_due_time(shop: Shop) -> None:
    shop.migrate()
    assert shop.orders.ok("delayed", "list").out == "nothing waits for its time\n"
    assert shop.orders.ok("delayed", "list", "--json").data == []
    later = remind(shop, 1, "\x1b[31ma", level=18)
    sooner = remind(shop, 2, "b", biz_key="4711", delay=timedelta(minutes=90))
    shop.place([3])

    listed = shop.orders.run("delayed", "list", "--json", app=False).data
    assert [event["ref"] for event in listed] == [str(sooner), str(later)]
    assert list(listed[0]) == [
        *("ref", "event_type", "topic", "key", "biz_key", "created_at", "due_at"),
        *("attempts", "due_in_seconds"),
    ]
    assert (listed[0]["key"], listed[0]["biz_key"]) == ("b", "4711")
    assert 5000 < listed[0]["due_in_seconds"] <= 5400

    table = shop.orders.ok("delayed", "list").out
    assert "\x1b" not in table
    rows = [line.split() for line in table.splitlines() if "orders.placed" in line]
    assert [row[0] for row in rows] == [str(sooner), str(later)]
    assert rows[0][-4:] == ["1", "h", "29", "min"]
    for words, refs in (
        (["--key", "b"], [sooner]),
        (["--limit", "1"], [sooner]),
        (["--topic", "orders.placed", "--type", "orders.placed"], [sooner, later]),
        (["--key", "c"], []),
    ):
        found = shop.orders.ok("delayed", "list", "--json", *words).data
        assert [event["ref"] for event in found] == [str(ref) for ref in refs]
    mistyped = shop.orders.run("delayed", "list", "--type", "orders.paid")
    assert mistyped.status == 2
    assert "--type 'orders.paid': the application does not declare this name" in mistyped.err


def test_overdue_event_is_listed_as_overdue(shop: Shop) -> None:
    shop.migrate()
    remind(shop, 1, at=datetime.now(UTC) - HOUR)
    assert shop.orders.ok("delayed", "list").out.rstrip().endswith("overdue")
    [event] = shop.orders.ok("delayed", "list", "--json").data
    assert event["due_in_seconds"] < -3500


def test_cancel_by_id_or_business_key_is_audited(shop: Shop) -> None:
    shop.migrate()
    first, second = (remind(shop, n, delay=HOUR) for n in (1, 2))
    third = remind(shop, 3, biz_key="4711", delay=HOUR)

    result = shop.orders.run("delayed", "cancel", str(first), str(second), *CANCEL, app=False)
    assert result.status == 0
    assert result.out == f"event {first} is cancelled\nevent {second} is cancelled\n"
    by_key = ["--type", "orders.placed", "--biz-key", "4711", "--who", "ann, ticket 12"]
    answer = shop.orders.ok("delayed", "cancel", *by_key, *CANCEL, "--json").data
    assert [(a["event_id"], a["result"], a["status"]) for a in answer] == [
        (str(third), "done", "DISCARDED")
    ]
    assert shop.orders.outbox() == {"DISCARDED": 3}
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    rows = shop.orders.rows("SELECT who, action, subject FROM shield_audit ORDER BY id")
    assert rows == [
        (me, "cancel", f"event {first} in the outbox"),
        (me, "cancel", f"event {second} in the outbox"),
        ("ann, ticket 12", "cancel", f"event {third} in the outbox"),
    ]
    details = shop.orders.rows("SELECT detail FROM shield_audit")
    assert {json.loads(str(detail))["discard_reason"] for (detail,) in details} == {WHY[1]}


def test_cancel_discards_only_after_confirmation(shop: Shop) -> None:
    shop.migrate()
    event_id = remind(shop, 1, delay=HOUR)

    refused = shop.orders.run("delayed", "cancel", str(event_id), *WHY, answer="n\n")
    assert (refused.status, refused.out) == (1, "")
    assert refused.err == (
        "Discard 1 permanently? [y/N] Aborted: nothing was cancelled (use --yes to skip the "
        "prompt)\n"
    )
    assert status(shop, event_id) == "INIT"

    shop.orders.run("delayed", "cancel", str(event_id), *WHY, answer="y\n")
    assert status(shop, event_id) == "DISCARDED"


def test_reschedule_audits_both_times(shop: Shop) -> None:
    shop.migrate()
    event_id = remind(shop, 1, delay=HOUR)
    before = shop.orders.one("SELECT due_at FROM shield_outbox")
    at = "2199-05-01T08:00:00+02:00"

    result = shop.orders.ok("delayed", "reschedule", str(event_id), "--at", at).out
    assert result == f"event {event_id} is due 2199-05-01T06:00:00+00:00\n"
    assert shop.orders.one("SELECT due_at FROM shield_outbox") == datetime.fromisoformat(at)
    detail = json.loads(shop.orders.one("SELECT detail FROM shield_audit"))
    assert datetime.fromisoformat(detail["due_at"]) == before
    assert datetime.fromisoformat(detail["due_at_now"]) == datetime.fromisoformat(at)

    for words, seconds in (
        (["--delay", "PT2H"], 7200),
        (["--delay", "90"], 90),
        (["--level", "5"], 60),
    ):
        shop.orders.ok("delayed", "reschedule", str(event_id), *words)
        left = shop.orders.one(
            "SELECT extract(epoch FROM due_at - now())::float8 FROM shield_outbox"
        )
        assert seconds - 30 < left <= seconds


@pytest.mark.parametrize("command", [["cancel", *CANCEL], ["reschedule", "--delay", "60"]])
def test_late_changes_are_reported_and_others_are_made(shop: Shop, command: list[str]) -> None:
    shop.migrate()
    published = remind(shop, 1, at=datetime.now(UTC) - HOUR)
    shop.orders.ok("relay", "--once")
    due = remind(shop, 2, at=datetime.now(UTC) - HOUR)
    waits = remind(shop, 3, delay=HOUR)
    unknown = UUID(int=7)

    result = shop.orders.run("delayed", *command, *map(str, (published, due, unknown, waits)))
    assert result.status == 1
    lines = result.out.splitlines()
    assert lines[:3] == [
        f"event {published} is left as it is: it has been published",
        f"event {due} is left as it is: its time has come, a relay may take it at any moment",
        f"event {unknown} is left as it is: there is no such event in this outbox",
    ]
    assert lines[3].startswith(f"event {waits} is ")
    assert shop.orders.one("SELECT count(*) FROM shield_audit") == 1
    answers = shop.orders.run("delayed", *command, str(published), "--json")
    assert (answers.status, answers.data[0]["result"]) == (1, "published")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["cancel", str(UUID(int=1)), "--reason", " "], "--reason: give a reason"),
        (["cancel", *WHY], "name events by their ids, or one by --type and --biz-key"),
        (["cancel", str(UUID(int=1)), "--biz-key", "1", *WHY], "name events by their ids"),
        (["cancel", "--biz-key", "1", *WHY], "name events by their ids"),
        (["cancel", "--type", "orders.placed", *WHY], "name events by their ids"),
        (
            ["cancel", "not-an-id", *WHY],
            "'not-an-id' is not an event id; see `shieldtx delayed list`",
        ),
        (["reschedule", str(UUID(int=1))], "give one of --delay, --at and --level"),
        (
            ["reschedule", str(UUID(int=1)), "--delay", "5 weeks"],
            "--delay: '5 weeks' is not a duration; use seconds",
        ),
        (["reschedule", str(UUID(int=1)), "--delay", "-5"], "must be longer than 0"),
        (
            ["reschedule", str(UUID(int=1)), "--at", "noon"],
            "--at: 'noon' is not a time; write it as",
        ),
        (
            ["reschedule", str(UUID(int=1)), "--at", "2031-05-01T08:00:00"],
            "--at: .* has no time zone",
        ),
        (
            ["reschedule", str(UUID(int=1)), "--level", "1", "--delay", "1"],
            "give one of --delay, --at and",
        ),
    ],
)
def test_invalid_arguments_are_one_line(shop: Shop, words: list[str], problem: str) -> None:
    shop.migrate()
    result = shop.orders.run("delayed", *words)
    assert result.status == 2
    assert result.out == ""
    assert re.match(f"error: .*{problem}", result.err)
    assert result.err.count("\n") == 1


def test_relay_publishes_delayed_events_on_time_and_in_order(
    shop: Shop, eventually: Eventually
) -> None:
    """The relay is woken by due times alone: it polls once in ten minutes."""
    shop.migrate()
    shop.orders.start("relay", SHIELDTX_RELAY_POLL_INTERVAL="600")
    eventually(lambda: shop.orders.shards_by_owner().get(None) is None, "all shards are held")
    # The first event opens all connections.
    shop.place([0], key="warm")
    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 1}, "it is warm")
    with Session(shop.writer.engine) as session, session.begin():
        for number, seconds in enumerate((4.0, 2.0, 3.2, 2.5, 3.9), 1):
            event = Event(type="orders.placed", payload={"number": number}, key="same")
            delay = timedelta(seconds=seconds)
            shop.writer.outbox.add(session, event, delay=delay)

    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 6}, "all are published")

    late = [
        float(seconds)
        for (seconds,) in shop.orders.rows(
            "SELECT extract(epoch FROM settled_at - due_at) FROM shield_outbox WHERE waiting"
        )
    ]
    assert len(late) == 5
    assert_in_time(late)
    assert [n for key, n in shop.records() if key == "same"] == [2, 4, 3, 5, 1]


def test_cancelled_event_is_not_sent_and_rescheduled_is_on_time(
    shop: Shop, eventually: Eventually
) -> None:
    shop.migrate()
    shop.orders.start("relay")
    cancelled, kept = remind(shop, 1, delay=HOUR), remind(shop, 2, delay=HOUR)
    shop.orders.ok("delayed", "cancel", str(cancelled), *CANCEL)
    shop.orders.ok("delayed", "reschedule", str(kept), "--delay", "2")
    eventually(lambda: status(shop, kept) == "PROCESSED", "the other one is published")
    assert status(shop, cancelled) == "DISCARDED"
    assert shop.records() == [("k", 2)]
