"""`shieldtx dead discard`: dead letters that will never be handled."""

from __future__ import annotations

import getpass
import json
import socket

from tests.acceptance.conftest import Shop
from tests.acceptance.test_dead_commands import (
    a_dead_compensation,
    a_failed_order,
    a_parked_record,
    one,
    orders_group,
)
from tests.support.reasons import without_site

WHY = ("--reason", "refunded by hand")


def test_discard_needs_a_reason_and_rows(shop: Shop) -> None:
    shop.migrate()
    for words, problem in (
        (["--status", "DEAD"], "Missing option '--reason'"),
        (["--status", "DEAD", "--reason", " "], "--reason: give a reason"),
        ([*WHY], "name rows by their ids, or choose them by --status, and by --group"),
        (["a/b/1/2", "--status", "DEAD", *WHY], "name rows by their ids, or choose them"),
        (["a/b/1/2", *WHY], "there is no parked record a/b/1/2"),
        (["nonsense", *WHY], "'nonsense' is not an event id"),
    ):
        result = shop.orders.run("dead", "discard", *words, "--yes")
        assert (result.status, result.out) == (2, ""), words
        assert problem in result.err


def test_failed_event_is_discarded_only_after_confirmation(shop: Shop) -> None:
    shop.migrate()
    event_id = a_failed_order(shop)

    refused = shop.orders.run("dead", "discard", event_id, *WHY, answer="n\n")
    assert (refused.status, refused.out) == (1, "")
    assert (
        f"warning: discarding event {event_id} in the outbox (orders.placed, FAILED): no "
        in refused.err
    )
    assert "its local rollback, if it has one, has run already" in refused.err
    assert refused.err.endswith(
        "Discard 1 permanently? [y/N] "
        "Aborted: nothing was discarded (use --yes to skip the prompt)\n"
    )
    assert shop.orders.outbox() == {"FAILED": 1}
    assert shop.orders.rows("SELECT * FROM shield_audit") == []

    done = shop.orders.run("dead", "discard", event_id, *WHY, answer="y\n")
    assert done.status == 0
    assert done.out == (
        f"event {event_id} in the outbox is discarded\ndiscarded: 1, left as they are: 0\n"
    )
    assert shop.orders.outbox() == {"DISCARDED": 1}
    assert shop.orders.ok("dead", "list").out == "no dead letters\n"
    states = shop.orders.ok("status", "--json").data["outbox"]["states"]
    assert (states["FAILED"]["rows"], states["DISCARDED"]["rows"]) == (0, 1)

    again = shop.orders.run("dead", "discard", event_id, *WHY, "--yes")
    assert again.status == 1
    assert "is left as it is: it is DISCARDED, and only FAILED, DEAD, PARKED rows" in again.out
    assert shop.orders.run("dead", "replay", event_id, "--yes").status == 1
    assert shop.orders.ok("relay", "--once", "--json").data["published"] == 0


def test_discard_of_a_dead_compensation_is_audited(shop: Shop) -> None:
    shop.migrate()
    event_id = a_dead_compensation(shop)
    taken_back = str(shop.orders.one("SELECT event_id FROM shield_outbox"))

    result = shop.orders.run("dead", "discard", event_id, *WHY, "--yes", "--json")

    said = f"the effect of event {taken_back} of orders stays"
    assert said in result.err
    answer = one(result)
    assert (answer["ref"], answer["status"], answer["discarded"]) == (event_id, "DISCARDED", True)
    ((who, action, subject, detail),) = shop.orders.rows(
        "SELECT who, action, subject, detail FROM shield_audit"
    )
    assert who == f"{getpass.getuser()}@{socket.gethostname()}"
    assert (action, subject) == (
        "discard",
        f"event {event_id} in the inbox of group {orders_group(shop)}",
    )
    noted = json.loads(str(detail))
    assert (noted["from"], noted["to"]) == ("DEAD", "DISCARDED")
    assert noted["discard_reason"] == "refunded by hand"
    assert without_site(noted["reason"]) == "ValueError: this order cannot be cancelled"
    assert said in noted["consequence"]

    shop.orders.ok("consume", orders_group(shop), "--once")
    assert shop.orders.rows("SELECT * FROM cancelled") == []
    assert one(shop.orders.run("dead", "show", event_id, "--json"))["status"] == "DISCARDED"
    assert "DISCARDED" in shop.orders.ok("trace", event_id).out


def test_discard_by_filter_takes_the_listed_rows_only(shop: Shop) -> None:
    shop.migrate()
    group = a_parked_record(shop).split("/", maxsplit=1)[0]

    for words in (["--group", "mail"], ["--topic", "orders.paid"]):
        found = shop.stock.run("dead", "discard", "--status", "PARKED", *words, *WHY, "--json")
        assert (found.status, found.out) == (2, "")
        assert "the application does not declare this name" in found.err
    assert shop.stock.ok("dead", "list", "--status", "DEAD", "--json").data == []
    listed = one(shop.stock.run("dead", "list", "--status", "PARKED", "--json"))

    chosen = ("--status", "PARKED", "--group", group, "--topic", "orders.placed")
    result = shop.stock.run("dead", "discard", *chosen, *WHY, "--yes", app=False)

    assert result.status == 0
    assert (
        f"warning: discarding parked record {listed['ref']}: group {group} will never handle it\n"
        in result.err
    )
    assert result.out.splitlines()[0] == f"parked record {listed['ref']} is discarded"
    assert shop.stock.ok("dead", "list", "--json").data == []
    assert (
        one(shop.stock.run("dead", "show", str(listed["ref"]), "--json"))["status"] == "DISCARDED"
    )
    assert "parked records" not in shop.stock.ok("status").out
