"""`shieldtx half`, and the check-backs of the relay."""

from __future__ import annotations

import getpass
import json
import socket
from datetime import timedelta
from uuid import uuid4

import pytest

from tests.acceptance.conftest import Shop
from tests.conftest import Eventually

SECRET = "four-digits-and-a-name"


def prepare(shop: Shop, note: str = SECRET, number: int = 1) -> str:
    payload = {"number": number, "quantity": 1, "note": note}
    prepared = shop.writer.half_prepare(
        "orders.placed", payload, key=f"k{number}", immunity=timedelta(0)
    )
    return str(prepared)


def unresolved(shop: Shop) -> str:
    """Make a half message that becomes UNRESOLVED by its age."""
    event_id = prepare(shop)
    shop.orders.execute("UPDATE shield_outbox SET due_at = now()")
    shop.orders.ok("relay", "--once")
    assert shop.orders.outbox() == {"UNRESOLVED": 1}
    return event_id


def test_relay_checks_back_and_sends_or_discards(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    prepare(shop, "COMMIT", 1)
    prepare(shop, "ROLLBACK", 2)
    prepare(shop, "nobody knows", 3)
    shop.orders.start("relay")
    expected = {"PROCESSED": 1, "DISCARDED": 1, "HALF": 1}
    eventually(lambda: shop.orders.outbox() == expected, "all were asked about")
    assert shop.records() == [("k1", 1)]


def test_relay_once_checks_back_too(shop: Shop) -> None:
    shop.migrate()
    prepare(shop, "COMMIT")
    assert shop.orders.ok("relay", "--once", "--json").data["published"] == 1


def test_unresolved_message_is_listed_shown_and_committed(shop: Shop) -> None:
    shop.migrate()
    assert shop.orders.ok("half", "list").out == "there is no half message\n"
    event_id = unresolved(shop)

    [listed] = shop.orders.run("half", "list", "--json", app=False).data
    assert list(listed) == [
        "status",
        "ref",
        "source",
        "topic",
        "event_type",
        "key",
        "checks",
        "time",
        "next_check",
        "settled",
        "reason",
    ]
    assert (listed["status"], listed["ref"], listed["key"]) == ("UNRESOLVED", event_id, "k1")
    assert "older than 3 days" in listed["reason"]
    told = shop.orders.ok("half", "list").out.splitlines()
    assert told[0].split()[:2] == ["UNRESOLVED", event_id]
    assert told[1].split() == ["orders.placed,", "key", "k1,", "checks", str(listed["checks"])]

    shown = shop.orders.ok("half", "show", event_id)
    assert SECRET not in shown.out
    assert "bytes, --payload shows them)" in shown.out
    masked = shop.orders.ok("half", "show", event_id, "--json")
    assert SECRET not in masked.out
    assert masked.data["payload"] is None
    unmasked = shop.orders.ok("half", "show", event_id, "--payload", "--json").data
    assert json.loads(unmasked["payload"])["note"] == SECRET
    assert len(unmasked["payload"]) == unmasked["payload_bytes"] == masked.data["payload_bytes"]

    for answer in ("n\n", ""):
        refused = shop.orders.run("half", "commit", event_id, answer=answer)
        assert refused.status == 1
        assert refused.err.endswith(
            "Commit? [y/N] Aborted: nothing was committed or rolled back "
            "(use --yes to skip the prompt)\n"
        )
    assert shop.orders.rows("SELECT * FROM shield_audit") == []

    decided = shop.orders.run("half", "commit", event_id, answer="y\n")
    assert decided.out == f"half message {event_id} is queued\n"
    assert "It will be sent, unless a barrier that this command can read shows" in decided.err
    [(who, action, subject, detail)] = shop.orders.rows(
        "SELECT who, action, subject, detail FROM shield_audit"
    )
    assert who == f"{getpass.getuser()}@{socket.gethostname()}"
    assert (action, subject) == ("half commit", f"half message {event_id}")
    assert (json.loads(detail)["from"], json.loads(detail)["to"]) == ("UNRESOLVED", "INIT")
    assert shop.orders.ok("relay", "--once", "--json").data["published"] == 1


def test_operator_may_roll_back_a_message_still_checked(shop: Shop) -> None:
    shop.migrate()
    first, second = prepare(shop, number=1), prepare(shop, number=2)
    result = shop.orders.ok("half", "rollback", first, second, "--yes", "--who", "ann")
    assert result.err.count("it is still checked, and its local transaction may be in flight") == 2
    assert shop.orders.outbox() == {"DISCARDED": 2}
    assert shop.orders.rows("SELECT DISTINCT who, action FROM shield_audit") == [
        ("ann", "half rollback")
    ]


@pytest.mark.parametrize("way", ["commit", "rollback"])
def test_decided_half_message_is_refused(shop: Shop, way: str) -> None:
    shop.migrate()
    event_id = prepare(shop)
    shop.orders.ok("half", "commit", event_id, "--yes")
    result = shop.orders.run("half", way, event_id, "--yes")
    assert (result.status, result.out) == (1, "")
    assert f"error: half message {event_id} is INIT: an operator decides" in result.err


def test_unknown_half_message_is_one_line(shop: Shop) -> None:
    shop.migrate()
    shop.place([1])
    ordinary = str(shop.orders.one("SELECT event_id FROM shield_outbox"))
    for words, problem in (
        (["show", str(uuid4())], "there is no half message "),
        (["show", "nonsense"], "'nonsense' is not an event id; see `shieldtx half list`"),
        (["commit", ordinary, "--yes"], f"there is no half message {ordinary} in this database"),
    ):
        result = shop.orders.run("half", *words)
        assert (result.status, result.out) == (2, ""), words
        assert result.err.startswith(f"error: {problem}")
        assert result.err.count("\n") == 1


def test_status_shows_the_age_of_half_messages(shop: Shop) -> None:
    shop.migrate()
    unresolved(shop)
    prepare(shop, number=2)
    data = shop.orders.ok("status", "--json").data["outbox"]
    assert data["states"]["HALF"]["rows"] == data["states"]["UNRESOLVED"]["rows"] == 1
    assert data["delayed"]["rows"] == 0
    assert data["oldest_unresolved_seconds"] > data["oldest_half_seconds"] > 0
    assert data["oldest_pending_seconds"] is None
    told = shop.orders.ok("status").out
    assert "oldest half message" in told
    assert "oldest unresolved half message" in told


def test_message_that_is_resolved_is_refused_without_a_warning(shop: Shop) -> None:
    shop.migrate()
    event_id = prepare(shop, number=1)
    shop.orders.ok("half", "commit", event_id, "--yes")

    again = shop.orders.run("half", "rollback", event_id, answer="y\n")

    assert (again.status, again.out) == (1, "")
    assert again.err == (
        f"error: half message {event_id} is INIT: an operator decides about UNRESOLVED and HALF "
        "ones, see `shieldtx half list`\n"
    )
